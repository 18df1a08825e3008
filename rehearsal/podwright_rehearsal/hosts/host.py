"""Turn fresh namespaces into a host with root, devices, network and files, then become its systemd.

    unshare --mount --net --uts --ipc --pid --fork … host.py DIRECTORY HOSTNAME

Prints its process id as the machine sees it, then reads its description (fabric.HostDescription as JSON) from
standard input: by then the owner has put eth0 into the network namespace.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "autofs": (10, 235),  # fstab's x-systemd.automount needs it.
}
LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
# A host runs as the machine's root: what would change the machine's kernel is read-only.
READ_ONLY = ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs")
GROUPS = "opt/rehearsal/cgroup"  # control groups of version 1, by controller
BOOTED = "/run/rehearsal/booted"  # systemd says here that it has started all units


def main() -> None:
    """Build the host and become its init."""
    print(Path("/proc/self").readlink(), flush=True)  # this is still the machine's /proc
    description = json.load(sys.stdin)
    os.umask(0o022)
    root = Path(sys.argv[1]) / "root"
    build_root(Path(sys.argv[1]), root)
    make_devices(root / "dev", accelerators=description["accelerators"])
    for source, target in description["binds"]:
        bind_read_only(source, root / target.lstrip("/"))
    for controller, group in description["groups"].items():
        (root / GROUPS / controller).mkdir(parents=True, exist_ok=True)
        mount("--bind", group, root / GROUPS / controller)
    mount("--bind", description["shared"], root / "opt/rehearsal/lustre")
    mount("--bind", description["homes"], root / "opt/rehearsal/openzfs")
    socket.sethostname(description["hostname"])
    set_up_network(description["interface"], description["gateway"])
    enter(root)
    for pattern in description.get("absent", ()):
        remove(pattern)
    for path, name in description.get("moved", {}).items():
        move(Path(path), name)
    for path, file in description["files"].items():
        write(Path(path), file)
    become_systemd()


def mount(*arguments: str | Path) -> None:
    """Run mount, section 8."""
    subprocess.run(["mount", *map(str, arguments)], check=True)


def build_root(disk: Path, root: Path) -> None:
    """Mount an overlay of Debian's root, node image and disk, by relative names: a path may hold a colon."""
    for name in ("upper", "work", "root"):
        (disk / name).mkdir(exist_ok=True)
    os.chdir(disk)
    mount("-t", "overlay", "-o", "lowerdir=../image:../root,upperdir=upper,workdir=work", "overlay", "root")
    mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", root / "proc")
    mount("-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", root / "sys")
    mount("-t", "cgroup2", "-o", "nosuid,nodev,noexec", "cgroup2", root / "sys/fs/cgroup")
    # AWS's images mount the instance's own disks at /opt/dlami/nvme.
    scratch = {"tmp": "1777", "var/tmp": "1777", "opt/dlami/nvme": "755"}
    for name, mode in {"dev": "755", "run": "755", **scratch}.items():
        mount("-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", root / name)
    for name in READ_ONLY:
        if (root / name).exists():
            bind_read_only(root / name, root / name)
    (root / "run/rehearsal").mkdir()
    (root / "run/rehearsal/mounts").touch()
    (root / "run/lock").mkdir(mode=0o1777)


def make_devices(dev: Path, *, accelerators: int) -> None:
    """Create the usual devices, and a copy of /dev/null per accelerator: Slurm wants a file per GPU."""
    for name, number in (DEVICES | {f"nvidia{index}": DEVICES["null"] for index in range(accelerators)}).items():
        os.mknod(dev / name, stat.S_IFCHR, os.makedev(*number))
        (dev / name).chmod(0o666)
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)
    for name, kind, options in (("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"), ("shm", "tmpfs", "mode=1777")):
        (dev / name).mkdir()
        mount("-t", kind, "-o", options, kind, dev / name)


def bind_read_only(source: str | Path, target: Path) -> None:
    """Show a folder or file of the machine at `target`."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
    mount("-o", "remount,ro,bind", target)


def set_up_network(interface: str, gateway: str) -> None:
    """Set up eth0. The default route leads nowhere; scripts need it to find the host's own address."""
    commands = f"""
        link set lo up
        addr add {interface} dev eth0
        link set eth0 up
        route add default via {gateway}
    """
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def enter(root: Path) -> None:
    """Make the host's root the only root."""
    os.chdir(root)
    Path(".old").mkdir()
    subprocess.run(["pivot_root", ".", ".old"], check=True)
    os.chroot(".")
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/.old"], check=True)
    Path("/.old").rmdir()


def remove(pattern: str) -> None:
    """Remove files and folders that this host's image lacks."""
    for path in Path("/").glob(pattern.lstrip("/")):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def become_systemd() -> None:
    """Become systemd. A child says "ready" when systemd has started everything, whether or not all of it succeeded."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(BOOTED)
    if os.fork() == 0:
        while b"READY=1" not in notify.recv(4096):
            pass
        print("ready", flush=True)
        os._exit(0)
    variables = {"container": "podwright", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": BOOTED}
    os.execve("/lib/systemd/systemd", ["systemd", "--show-status=false"], variables)  # noqa: S606 -- it takes our place


def move(path: Path, name: str) -> None:
    """Give a folder another name, and put a link in its place; mv copies what the overlay's layer has."""
    subprocess.run(["mv", "--no-target-directory", path, path.with_name(name)], check=True)
    path.symlink_to(name)


def write(path: Path, file: dict[str, Any]) -> None:
    """Write one of the files a node has before any script runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # /etc/resolv.conf may be a link
    path.write_bytes(base64.b64decode(file["content"]))
    path.chmod(file["mode"])
    account = pwd.getpwnam(file["owner"])  # shutil.chown would import from the root that is gone.
    os.chown(path, account.pw_uid, account.pw_gid)


if __name__ == "__main__":
    main()
