"""Real SSSD asks a real LDAP server over TLS; both are the distribution's packages, installed on the host's disk."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.rehearsal]

LDAP = Path(__file__).resolve().parent / "ldap"
INSTALL_TIMEOUT_S = 500
PACKAGES = ("slapd", "sssd-ldap", "libnss-sss", "libpam-sss")
IMAGE = ("openssh-server", "sudo")  # what AWS's image has
SETTINGS = {
    "uri": "ldaps://directory.test",
    "search_base": "dc=corp,dc=net",
    "bind_dn": "cn=reader,dc=corp,dc=net",
    "bind_secret_arn": "arn:aws:secretsmanager:us-west-2:1:secret:ldap",
    "certificate": "/opt/ldap/authority.pem",
    "allowed_groups": ["research"],
    "probe_user": "ada",
}


@pytest.fixture(scope="module")
def ask(make_shared_host, fetch_packages):
    """Run commands on a host beside the LDAP server; ``boot CHANGES`` sets the step up, with changed settings.

    What a test installs stays on the host's disk for the next.
    """
    host = make_shared_host(role="controller", patience=0.5, covered="etc usr var")
    host.cloud.contract["podwright"]["nodes"] = {"ldap": SETTINGS}
    for shim in ("apt-get", "dpkg-query", "sshd"):
        (host.shims / shim).unlink()
    shutil.copytree(LDAP, host.disk / "opt/ldap")
    (host.shims / "systemctl").rename(host.shims / "systemctl.remembering")
    shutil.copy2(LDAP / "systemctl", host.shims / "systemctl")
    shutil.copy2(LDAP.parent / "install.sh", host.disk / "opt/install.sh")
    host.write("opt/secret", "hush-hush\n")
    host.write(
        "opt/change.py",
        "import json, sys\n"
        "path = '/opt/scripts/provisioning_parameters.json'\n"
        f"content = json.loads('''{json.dumps(host.cloud.contract)}''')\n"
        "nodes, (changes, users) = content['podwright']['nodes'], map(json.loads, sys.argv[1:])\n"
        "nodes['users'] = users\n"
        "nodes['ldap'] = changes if changes is None else {**nodes['ldap'], **changes}\n"
        "open(path, 'w').write(json.dumps(content))\n",
    )
    prepare = f"""
        mount -t tmpfs tmpfs /run
        export PACKAGES={fetch_packages(*PACKAGES, *IMAGE)}
        /opt/ldap/serve.sh >/opt/ldap/log 2>&1 || {{ tail -n 20 /opt/ldap/log; exit 1; }}
        ./on_create.sh --only lustre >/dev/null
        boot() {{ python3 /opt/change.py "$1" "${{2:-[]}}"; ./on_create.sh --only ldap; }}
    """
    return lambda commands: host.run(prepare + commands, timeout_s=INSTALL_TIMEOUT_S)


def test_what_the_ldap_server_refuses_is_reported(ask):
    """A wrong authority, another host's certificate, a wrong password and an unknown person have each their line."""
    boot = ask("""
        boot '{"certificate": "/opt/ldap/another.pem"}'
        boot '{"uri": "ldaps://another.test"}'
        echo wrong >/opt/secret; boot '{}'; echo hush-hush >/opt/secret
        boot '{}' # which installs
        export PODWRIGHT_PATIENCE=0.1; boot '{"probe_user": "eve"}'
    """)
    authority, name, password, person = boot.failures
    assert boot.output.index(password) < boot.output.index("installed sssd-ldap, libnss-sss, libpam-sss")
    assert (
        "ldaps://directory.test: its certificate is not accepted: self-signed certificate in certificate chain"
        in authority
    )
    assert "ldaps://another.test: its certificate is not accepted: Hostname mismatch" in name
    assert (
        "the LDAP server does not accept the password of cn=reader,dc=corp,dc=net: invalid credentials (49)" in password
    )
    assert "user eve of ldaps://directory.test" in person
    assert "is eve below dc=corp,dc=net, with uidNumber and gidNumber?" in person


def test_people_of_an_ldap_server_are_known(ask):
    """After a boot people have ids, groups and a home, only those of allowed groups log in, and nobody saw a secret.

    A compute node, which may not ask AWS for the password, has it from a controller.
    """
    boot = ask("""
        boot '{}' && boot '{}' && boot '{"uri": "ldap://directory.test"}'
        getent passwd ada; id ada
        su - ada -c 'pwd; touch here && stat -c "%U %a" .' && ! su - mallory -c pwd
        stat -c %a /etc/sssd/sssd.conf; cat /etc/nsswitch.conf
        config=/opt/ml/config/resource_config.json
        cp $config /opt/config
        sed -i 's/"Name": "controller"/"Name": "other"/; s/"Name": "workers"/"Name": "controller"/' $config
        sed -i 's/"Name": "other"/"Name": "workers"/' $config
        rm /etc/sssd/sssd.conf; mv /opt/secret /opt/kept
        echo as compute; boot '{}' && id ada
        mv /opt/kept /opt/secret; mv /opt/config $config
    """)
    assert boot.failures == [], boot.output
    assert [", 0 changes, " in summary for summary in boot.summaries] == [False, True, False, False]
    assert "uid=5001(ada)" in boot.output.partition("\nas compute\n")[2]
    assert "ada:*:5001:5100:Ada:/mnt/fsx/home/ada:/bin/bash" in boot.output
    assert "uid=5001(ada) gid=5100(research) groups=5100(research)" in boot.output
    assert "\n/mnt/fsx/home/ada\nada 7" in boot.output
    assert "\n600\n" in boot.output
    assert "hush" not in boot.output


def test_keys_sudo_and_a_filter_come_from_the_directory(ask):
    """The directory's SSH key opens its owner's account, members of a group become root, a filter says who logs in.

    People and groups of the directory with names or ids of the node's own are nobody here, also those of a user who
    comes later. What a later cluster.yaml leaves out goes, and the whole directory with its section.
    """
    boot = ask("""
        mkdir -p /run/sshd && chmod 755 /mnt /mnt/fsx
        [[ -e /usr/sbin/sshd ]] || /opt/install.sh openssh-server sudo >/opt/log 2>&1 || cat /opt/log
        sed -i 's/^\\(session.*\\)required\\(.*pam_loginuid\\)/\\1optional\\2/' /etc/pam.d/sshd
        wanted='{"ssh_key_attribute": "sshPublicKey", "sudo_groups": ["research"], "allowed_groups": []'
        wanted+=', "access_filter": "(uid=ada)"}'
        boot "$wanted" && boot "$wanted"
        /usr/sbin/sshd -o UsePAM=yes -o PasswordAuthentication=no
        until (: <>/dev/tcp/directory.test/22) 2>/dev/null; do sleep 0.1; done # sshd returns before it listens
        ssh="ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i /opt/ldap/ada"
        $ssh ada@directory.test 'echo by key: $(id -un)'
        $ssh mallory@directory.test 'echo stolen'
        $ssh ubuntu@directory.test 'echo stolen'
        getent --service=sss passwd ubuntu toor system twin heir 0 33 1000; getent --service=sss group helpers keepers
        id mallory
        su - ada -c 'echo open-sesame | sudo -S -p "" sh -c "echo became \\$(id -un)"'
        su - ada -c 'echo wrong | sudo -S -p "" echo stolen'
        sudo -l -U mallory
        su - mallory -c 'echo stolen'
        ./on_create.sh --only controller_logins
        for user in ada mallory; do
          echo denied $user: $(sshd -T -C user=$user,host=x,addr=127.0.0.1 | grep -c '^denyusers')
        done
        rm /etc/ssh/sshd_config.d/podwright-controllers.conf
        other="${wanted%?}"', "probe_user": "mallory"}'
        boot "$other" '[{"name": "ada", "uid": 2001}]' && ./on_create.sh --only users
        $ssh ada@directory.test 'echo stolen'; id ada
        userdel ada && boot '{}'
        ls /etc/sudoers.d /etc/ssh/sshd_config.d
        boot '{"sudo_groups": ["research"]}' && boot null
        echo after: $(ls /etc/sudoers.d /etc/sssd) $(getent passwd ada)
    """)
    assert boot.failures == [], boot.output
    assert [", 0 changes, " in summary for summary in boot.summaries] == [False, True, *[False] * 6]
    assert "\nby key: ada\n" in boot.output
    assert "\nbecame root\n" in boot.output
    assert "\nstolen" not in boot.output
    assert "\ndenied ada: 0\ndenied mallory: 1\n" in boot.output
    assert "User mallory is not allowed to run sudo" in boot.output
    assert "\nuid=2001(ada) gid=2001(ada) groups=2001(ada)\n" in boot.output
    assert "\nuid=5002(mallory) gid=5200(guests) groups=5200(guests)\n" in boot.output
    assert not re.search(r"(?m)^(ubuntu|toor|system|twin|heir|helpers|keepers):", boot.output)
    left, _, after = boot.output.rpartition("/etc/ssh/sshd_config.d:")[2].partition("\nafter: ")
    left = left.partition("\n20")[0]  # where the log of the next boot begins
    assert "README" in left
    assert "podwright-ldap" not in left
    assert not [word for word in ("podwright", "sssd.conf", "ada") if word in after]
