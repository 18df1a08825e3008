"""Real SSSD asks a real LDAP server over TLS; both are the distribution's packages, installed on the host's disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.rehearsal]

LDAP = Path(__file__).resolve().parent / "ldap"
INSTALL_TIMEOUT_S = 500
PACKAGES = ("slapd", "sssd-ldap", "libnss-sss", "libpam-sss")
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
    host = make_shared_host(patience=0.5, covered="etc usr var")
    host.cloud.contract["podwright"]["nodes"] = {"ldap": SETTINGS}
    for shim in ("apt-get", "dpkg-query"):
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
        "content['podwright']['nodes']['ldap'].update(json.loads(sys.argv[1]))\n"
        "open(path, 'w').write(json.dumps(content))\n",
    )
    prepare = f"""
        mount -t tmpfs tmpfs /run
        export PACKAGES={fetch_packages(*PACKAGES)}
        /opt/ldap/serve.sh >/opt/ldap/log 2>&1 || {{ tail -n 20 /opt/ldap/log; exit 1; }}
        ./on_create.sh --only lustre >/dev/null
        boot() {{ python3 /opt/change.py "$1"; ./on_create.sh --only ldap; }}
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
    """After a boot people have ids, groups and a home, only those of allowed groups log in, and nobody saw a secret."""
    boot = ask("""
        boot '{}' && boot '{}' && boot '{"uri": "ldap://directory.test"}'
        getent passwd ada; id ada
        su - ada -c 'pwd; touch here && stat -c "%U %a" .' && ! su - mallory -c pwd
        stat -c %a /etc/sssd/sssd.conf; cat /etc/nsswitch.conf
    """)
    assert boot.failures == [], boot.output
    assert [", 0 changes, " in summary for summary in boot.summaries] == [False, True, False]
    assert "ada:*:5001:5100:Ada:/mnt/fsx/home/ada:/bin/bash" in boot.output
    assert "uid=5001(ada) gid=5100(research) groups=5100(research)" in boot.output
    assert "\n/mnt/fsx/home/ada\nada 7" in boot.output
    assert "\n600\n" in boot.output
    assert "hush" not in boot.output
