"""Runs jobs of several ranks without importing torch for each: reads one JSON job per line, forks its ranks, answers.

A job is ``{"argv": [...], "ranks": n}``; the answer is ``{"status": s, "output": text}``.
"""

import json
import os
import socket
import sys
import tempfile

from podwright_training.__main__ import main
from podwright_training.loop import trainer  # noqa: F401 - imported before forking: that is the point


def run(argv, ranks):
    """Fork the ranks, wait for all, and return the worst exit status and what they printed."""
    with socket.socket() as probe, tempfile.TemporaryFile() as output:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        pids = [fork(argv, rank, ranks, port, output.fileno()) for rank in range(ranks)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        output.seek(0)
        return {"status": max(statuses, key=abs), "output": output.read().decode()}


def fork(argv, rank, ranks, port, output):
    """Start one rank as torchrun would."""
    if pid := os.fork():
        return pid
    os.dup2(output, 1)
    os.dup2(output, 2)
    places = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in places.items()}
    status = 1
    try:
        status = main(argv)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


for line in sys.stdin:
    print(json.dumps(run(**json.loads(line))), flush=True)
