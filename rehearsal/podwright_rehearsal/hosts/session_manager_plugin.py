"""Act as AWS's session-manager-plugin: open a session on a rehearsed host.

    session_manager_plugin.py DIRECTORY --version
    session_manager_plugin.py DIRECTORY VARIABLE REGION StartSession PROFILE REQUEST ENDPOINT
    session_manager_plugin.py --bridge PORT

The arguments after DIRECTORY are those of the AWS CLI. VARIABLE names the environment variable with the answer of
StartSession. DIRECTORY/instances.json has the process id of each host's init by instance id. AWS's plugin speaks with
the node through a WebSocket; this one enters the host's namespaces.

It is the only program of a session that is not the real one: sshd and Slurm on the host are.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

INSTANCES = "instances.json"
VERSION = "1.2.707.0"
SHELL = "SSM-SessionManagerRunShell"
HOME = "/root"
CHUNK_BYTES = 1 << 16


def main() -> int:
    """Run the session that the arguments describe."""
    option, *words = sys.argv[1:]
    if option == "--bridge":
        return bridge(int(words[0]))
    if words == ["--version"]:
        print(VERSION)
        return 0
    variable, _, operation, _, request, _ = words
    answer = json.loads(os.environ.pop(variable))
    if operation != "StartSession" or not {"SessionId", "TokenValue", "StreamUrl"} <= answer.keys():
        print("this is not a response of StartSession", file=sys.stderr)
        return 1
    return open_session(Path(option), answer["SessionId"], json.loads(request))


def open_session(directory: Path, session_id: str, request: dict[str, Any]) -> int:
    """Open the session that the request's document describes."""
    instance_id = "i-" + request["Target"].rpartition("-i-")[2]
    pid = json.loads((directory / INSTANCES).read_text()).get(instance_id)
    if pid is None or not Path(f"/proc/{pid}").exists():
        print(f"no host is instance {instance_id}", file=sys.stderr)
        return 1
    document = request.get("DocumentName", SHELL)
    parameters = {name: values[0] for name, values in request.get("Parameters", {}).items()}
    if document == "AWS-StartSSHSession":
        command = bridge_command(pid, parameters["portNumber"])
        os.execvp(command[0], command)  # noqa: S606 -- it takes our pipes and our place
    if document == "AWS-StartPortForwardingSession":
        return forward(pid, session_id, remote=parameters["portNumber"], local=int(parameters["localPortNumber"]))
    line = ["--command", parameters["command"]] if "command" in parameters else []
    own_clocks = ["--time"] if Path(f"/proc/{pid}/ns/time").exists() else []
    namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", *own_clocks]
    enter = ["nsenter", "--target", str(pid), *namespaces, "--root", "--wd", "--"]
    print(f"\nStarting session with SessionId: {session_id}", flush=True)
    status = subprocess.run([*enter, "/usr/bin/su", "--login", "root", *line], check=False).returncode
    print(f"\nExiting session with sessionId: {session_id}.\n")
    return 0 if line else status  # AWS's plugin does not pass on a command's status


def bridge_command(pid: int, port: str) -> list[str]:
    """Return the command that connects its standard input and output with a port of a host's loopback."""
    script = [sys.executable, "-I", "-S", __file__, "--bridge", port]
    return ["nsenter", "--target", str(pid), "--net", "--", *script]


def forward(pid: int, session_id: str, *, remote: str, local: int) -> int:
    """Forward connections to a port of this machine, for ever."""
    with socket.create_server(("127.0.0.1", local)) as server:
        print(f"\nStarting session with SessionId: {session_id}")
        print(
            f"Port {server.getsockname()[1]} opened for sessionId {session_id}.\nWaiting for connections...", flush=True
        )
        while True:
            connection, _ = server.accept()
            with connection:
                end = connection.fileno()
                subprocess.Popen(bridge_command(pid, remote), stdin=end, stdout=end)


def bridge(port: int) -> int:
    """Copy standard input to a port of this network's loopback, and its answers to standard output."""
    try:
        peer = socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        print(f"port {port}: {error}", file=sys.stderr)
        return 1
    with peer, selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(peer, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                source = key.fd
                data = os.read(source, CHUNK_BYTES)
                if source == peer.fileno():
                    if not data:
                        return 0
                    write(sys.stdout.fileno(), data)
                elif data:
                    peer.sendall(data)
                else:
                    selector.unregister(source)
                    peer.shutdown(socket.SHUT_WR)
    return 0


def write(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    raise SystemExit(main())
