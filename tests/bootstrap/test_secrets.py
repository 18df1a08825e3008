"""Secrets stay where they belong: planted ones are looked for in everything that a boot shows or leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.hosts

# The aws shim gives the first two to whoever asks Secrets Manager or Parameter Store; the third is in the environment.
DATABASE = "planted-database-password-7f3a"
LDAP = "planted-ldap-password-91cc"
HUB = "hf_plantedplantedplanted"
PLANTED = (DATABASE, LDAP, HUB)
ANSWER = json.dumps({"username": "admin", "password": DATABASE, "bind_password": LDAP})
AWS = f"""
case "$1 $2" in
  "secretsmanager get-secret-value") echo '{json.dumps({"SecretString": ANSWER})}'; exit ;;
  "ssm get-parameter") echo '{json.dumps({"Parameter": {"Value": ANSWER}})}'; exit ;;
esac
"""
# What may hold a secret, because the service that reads it wants a file: never readable by others.
OWN_FILES = ("slurmdbd.conf", "sssd.conf")


def plant(host):
    """Let the host's aws command answer with secrets; `. /opt/shims/planted` puts one into the environment."""
    lines = (host.shims / "aws").read_text().splitlines()
    host.write("opt/shims/aws", "\n".join([lines[0], AWS, *lines[1:]]) + "\n", mode=0o755)
    host.write("opt/shims/planted", f"export HF_TOKEN={HUB}\n")


def arguments_of_all(root, seen):
    """Add what `ps` would show of every process below a host's first one: arguments and, of ours, nothing else."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pending = [root]
    while pending:
        pid = pending.pop()
        pending += children.get(pid, [])
        try:
            seen.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue


def boot_watched(host, finish, commands):
    """Boot, looking at all arguments about every hundredth of a second."""
    seen: set[str] = set()
    process = host.start_boot(commands)
    end = time.monotonic() + 600
    while not (host.disk / "opt/done").exists() and process.poll() is None and time.monotonic() < end:
        arguments_of_all(process.pid, seen)
        time.sleep(0.01)
    return finish(process), seen


def holders(folder):
    """Files below a folder that hold a planted secret, whatever their names, but those that plant it."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and "shims" not in path.parts
    ]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in PLANTED)]


@pytest.mark.parametrize("role", ["compute", "controller"])
def test_no_secret_is_shown_or_left(make_host, cloud, finish, role):
    """No argument, output, log or file holds a secret, but a service's own file that it alone may read."""
    host = make_host(role=role)
    plant(host)
    boot, seen = boot_watched(host, finish, ". /opt/shims/planted; ./on_create.sh && touch /opt/done")
    assert boot.exit_code == 0, boot.output
    assert any("podwright_bootstrap" in arguments for arguments in seen)
    for secret in PLANTED:
        assert secret not in boot.output
        assert [arguments for arguments in seen if secret in arguments] == []
    assert [path for path in holders(host.disk) if path.name not in OWN_FILES or path.stat().st_mode & 0o077] == []
    assert holders(cloud.shared) == []


def test_the_watch_sees_what_it_is_for(make_host, cloud, finish):
    """A secret in arguments, log, file or on the shared file system would be found."""
    host = make_host()
    plant(host)
    shown = "password=$(aws secretsmanager get-secret-value)"
    commands = (
        f'{shown}; sh -c \'sleep 0.5\' "$password"; echo "$password"; echo "$password" | tee /opt/leak >/dev/null; '
        "mkdir -p /mnt/fsx; mount -t lustre fs@tcp:/abcdefgh /mnt/fsx; cp /opt/leak /mnt/fsx/leak"
    )
    boot, seen = boot_watched(host, finish, commands)
    assert DATABASE in boot.output
    assert any(LDAP in arguments for arguments in seen)
    assert [path.name for path in holders(host.disk)] == ["leak"]
    assert [path.name for path in holders(cloud.shared)] == ["leak"]
