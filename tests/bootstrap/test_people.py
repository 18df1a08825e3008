"""People at work on a host: a real sshd lets them in and greets them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_TIMEOUT_S = 1500

pytestmark = [pytest.mark.hosts, pytest.mark.rehearsal]

# In a namespace the kernel does not let PAM note who logged in.
SSHD = r"""
sed -i 's/^\(session.*\)required\(.*pam_loginuid\)/\1optional\2/' /etc/pam.d/sshd
mkdir -p /run/sshd && chmod 755 /mnt /mnt/fsx
echo "$ADDRESS $(hostname)" >>/etc/hosts
/usr/sbin/sshd -o UsePAM=yes -o PasswordAuthentication=no
until (exec 3<>"/dev/tcp/$ADDRESS/22") 2>/dev/null; do sleep 0.1; done # it listens after it went into the background
"""


def test_administrators_alone_log_in_to_controllers(make_host, cloud, fetch_packages, tmp_path: Path):
    """Ada, an administrator, gets into the controller; Bob does once the cluster lets everybody in."""
    laptop = tmp_path / "laptop"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", laptop], check=True)
    public = laptop.with_suffix(".pub").read_text().strip()
    people = [{"name": name, "uid": uid, "ssh_keys": [public]} for name, uid in (("ada", 2001), ("bob", 2002))]
    cloud.contract["podwright"]["nodes"] = {"users": people, "controller_logins": {"admins": ["ada"]}}
    host = make_host(role="controller", covered="etc usr var")
    for shim in ("apt-get", "dpkg-query", "sshd"):
        (host.shims / shim).unlink()
    shutil.copy2(Path(__file__).with_name("install.sh"), host.disk / "opt/install.sh")
    cloud.contract["podwright"]["nodes"]["controller_logins"] = {"everybody": True}
    host.write("opt/later.json", json.dumps(cloud.contract))
    boot = host.boot(
        f"""
        mount -t tmpfs tmpfs /run
        PACKAGES={fetch_packages("openssh-server")} /opt/install.sh openssh-server >/opt/log 2>&1 || cat /opt/log
        mkdir -p /run/sshd
        for step in lustre users homes controller_logins; do ./on_create.sh --only $step || exit; done
        ADDRESS={host.address}
        {SSHD}
        ssh="ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i {laptop}"
        $ssh ada@{host.name} 'echo at first $(id -un)'
        $ssh bob@{host.name} 'echo at first $(id -un)'
        cp /opt/later.json provisioning_parameters.json
        ./on_create.sh --only controller_logins
        kill -HUP $(cat /run/sshd.pid)
        for try in $(seq 50); do $ssh bob@{host.name} 'echo later $(id -un)' && break; sleep 0.2; done
    """,
        timeout_s=INSTALL_TIMEOUT_S,
    )
    assert boot.failures == [], boot.output
    assert "\nat first ada\n" in boot.output
    assert "\nat first bob" not in boot.output
    assert f"bob@{host.name}: Permission denied (publickey)" in boot.output
    assert "\nlater bob\n" in boot.output


def test_people_log_in_between_nodes_and_from_outside(make_host, cloud, fetch_packages, tmp_path: Path):
    """A user's own key opens the user's account on every node, the user's laptop too, nobody else's; motd greets."""
    laptop = tmp_path / "laptop"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", laptop], check=True)
    public = laptop.with_suffix(".pub").read_text().strip()
    people = [{"name": "ada", "uid": 2001, "ssh_keys": [public]}, {"name": "bob", "uid": 2002}]
    cloud.contract["podwright"]["nodes"] = {"users": people, "motd": True}
    host = make_host(role="login", address="10.1.0.6", covered="etc usr var")
    for shim in ("apt-get", "dpkg-query", "sshd"):
        (host.shims / shim).unlink()
    shutil.copy2(Path(__file__).with_name("install.sh"), host.disk / "opt/install.sh")
    boot = host.boot(
        f"""
        mount -t tmpfs tmpfs /run
        PACKAGES={fetch_packages("openssh-server")} /opt/install.sh openssh-server >/opt/log 2>&1 || cat /opt/log
        ./on_create.sh || exit
        ADDRESS={host.address}
        {SSHD}
        ssh="ssh -o BatchMode=yes"
        su - ada -c "$ssh {host.name} 'echo between: \\$(id)'"
        su - ada -c "$ssh bob@{host.name} echo stolen"
        $ssh -i {laptop} ada@{host.name} 'echo outside: $(pwd)'
        su - ada -c "echo exit | $ssh -tt {host.name}"
    """,
        timeout_s=INSTALL_TIMEOUT_S,
    )
    assert "\nbetween: uid=2001(ada) gid=2001(ada) groups=2001(ada)\n" in boot.output
    assert "\nstolen" not in boot.output
    assert f"bob@{host.name}: Permission denied (publickey)" in boot.output
    assert "\noutside: /mnt/fsx/home/ada\n" in boot.output
    assert f"test: {host.name}, login node of group login" in boot.output
