"""Hold a cluster's pid, mount and network namespaces; end with the owner, however that ends.

Hosts are started inside this process's pid namespace, of which it is PID 1: when it ends, the kernel kills every
process of every host, and with the last of them go the mounts and the network. There is nothing else to clean up.

    unshare --mount --net --pid --fork … cluster_namespaces.py DIRECTORY

Standard input is a socket to the owner. It reads {"image", "root", "gateway", "port"}, answers {"pid"} and two
sockets on the gateway's address inside the cluster's network, one that listens on the port and one for DNS, and then
waits for the end of the connection.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import sys
from pathlib import Path

FABRIC = "fabric"  # Folder in DIRECTORY: a tmpfs with the image and the hosts' disks, seen only in here

DNS_PORT = 53
GATEWAY_MAC = "02:01:00:00:00:01"  # its own: a bridge without one takes another when its ports change


def main() -> None:
    """Set up the namespaces, answer the owner, wait for its end."""
    owner = socket.socket(fileno=sys.stdin.fileno())
    request = json.loads(owner.recv(65536))
    make_network(request["gateway"])
    make_disks(Path(sys.argv[1]) / FABRIC, image=request["image"], root=request["root"])
    address = str(ipaddress.ip_interface(request["gateway"]).ip)
    with socket.create_server((address, request["port"])) as listener, socket.socket(type=socket.SOCK_DGRAM) as dns:
        dns.bind((address, DNS_PORT))
        answer = json.dumps({"pid": int(Path("/proc/self").readlink().name)})  # this is still the machine's /proc
        socket.send_fds(owner, [answer.encode()], [listener.fileno(), dns.fileno()])
    owner.recv(1)


def make_network(gateway: str) -> None:
    """Create a bridge with the gateway's address; anything beyond it is "network unreachable" at once."""
    for setting in ("all", "default"):
        ipv6 = Path(f"/proc/sys/net/ipv6/conf/{setting}/disable_ipv6")
        if ipv6.exists():
            ipv6.write_text("1")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    commands = f"""
        link set lo up
        link add br0 address {GATEWAY_MAC} type bridge forward_delay 0
        addr add {gateway} dev br0
        link set br0 up
        route add unreachable default
    """
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def make_disks(fabric: Path, *, image: str, root: str) -> None:
    """Show the image and the root below it in ``fabric``, where the hosts' disks will be."""
    fabric.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(fabric)], check=True)
    for source, name in ((image, "image"), (root, "root")):
        (fabric / name).mkdir()
        subprocess.run(["mount", "--bind", source, str(fabric / name)], check=True)


if __name__ == "__main__":
    main()
