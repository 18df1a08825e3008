"""Run jobs of several ranks without importing torch for each: read one JSON job per line, fork its ranks, answer.

A job is ``{"argv": [...], "ranks": n}``; the answer is ``{"status": s, "output": text}``. A job may have

- ``ranks_per_host``: default: all ranks on one host;
- ``hosts``: names of the hosts;
- ``script``: run this file with ``argv`` instead of ``podwright-train argv``;
- ``kill_after``: ``[event, step]``: SIGKILL all ranks as soon as this event is in the metrics;
- ``output``: do not wait for the rank, whose output goes to this file: the answer is ``{"pid": n}``.

``{"wait": n}`` waits for such a rank; the answer is ``{"status": s}``.
"""

import faulthandler
import json
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

from podwright_common.garbage import lasting_imports, skip_last_collections

with lasting_imports():  # else each rank's garbage collection copies the memory of all these modules
    import torch
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.tokenization_auto  # noqa: F401 - imported before forking: that is the point

    from podwright_training.__main__ import main
    from podwright_training.checkpoint import export  # noqa: F401 - as above
    from podwright_training.commands import consolidate, evaluate, generate  # noqa: F401 - as above
    from podwright_training.loop import run as training  # noqa: F401 - as above
    from podwright_training.loop.metrics import Metrics

LIMIT_S = 500
IDLE_CPU_S = 5  # of all ranks, in LIMIT_S: less, and they wait for each other, however busy the machine is
RANK_CPU_S = 900
STACKS_S = 1  # to write the stacks of a rank
torch.set_num_threads(1)


def answer(job):
    """Do what a line asks for."""
    if "wait" in job:
        return {"status": os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1])}
    if "output" in job:
        with Path(job["output"]).open("ab") as output:
            return {"pid": fork(job, 0, 0, output.fileno())}
    return run(job)


def run(job):
    """Fork the ranks, wait for all, and return the worst exit status and what they printed."""
    with socket.socket() as probe, tempfile.TemporaryFile() as output:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        pids = []
        for rank in range(job["ranks"]):
            pids.append(fork(job, rank, port, output.fileno()))
            os.setpgid(pids[-1], pids[0])
        with silence_limit(pids, output.fileno()), ending_with(pids):
            statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        output.seek(0)
        return {"status": max(statuses, key=abs), "output": output.read().decode()}


@contextmanager
def silence_limit(pids, output):
    """Kill ranks that neither print nor compute: they wait for each other. Their output then shows where."""
    printed, computed_s = 0, 0.0

    def look(*_):
        nonlocal printed, computed_s
        before, before_s = printed, computed_s
        printed, computed_s = os.fstat(output).st_size, sum(map(cpu_s, pids))
        if printed > before or computed_s > before_s + IDLE_CPU_S:
            signal.alarm(LIMIT_S)
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGUSR1)
                time.sleep(STACKS_S)
        os.write(output, f"killed: printed and computed nothing for {LIMIT_S} s\n".encode())
        os.killpg(pids[0], signal.SIGKILL)

    signal.signal(signal.SIGALRM, look)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


def cpu_s(pid):
    """Return the CPU time of a process, user and system, in seconds; 0 of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def ending_with(pids):
    """On SIGTERM, kill the ranks and end: whoever asked no longer waits for an answer."""

    def end(*_):
        os.killpg(pids[0], signal.SIGKILL)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def fork(job, rank, port, output):
    """Start one rank as torchrun would."""
    if pid := os.fork():
        return pid
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch._C._set_print_stack_traces_on_fatal_signal(True)  # of threads without Python, as gloo's
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CPU, (RANK_CPU_S, resource.RLIM_INFINITY))
    ranks, on_host = job["ranks"], job.get("ranks_per_host", job["ranks"])
    values = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % on_host, "LOCAL_WORLD_SIZE": on_host}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if "hosts" in job:
        values["SLURMD_NODENAME"] = job["hosts"][rank // on_host]
    os.environ |= {name: str(value) for name, value in values.items()}
    status = 1
    try:
        if "kill_after" in job:
            kill_after(*job["kill_after"])
        status = run_script(job["script"], job["argv"]) if "script" in job else main(job["argv"])
    except Exception:  # noqa: BLE001 - of a script: its test shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_script(path, argv):
    """Run a file as ``python path argv`` does."""
    sys.argv = [path, *argv]
    runpy.run_path(path, run_name="__main__")
    return 0


def kill_after(event, step):
    """Kill all ranks at once, as Slurm and a power cut do, when the first has written an event of a step."""
    write = Metrics.write

    def write_and_die(self, written):
        write(self, written)
        if (written.kind, written.step) == (event, step):
            os.killpg(0, signal.SIGKILL)

    Metrics.write = write_and_die


skip_last_collections()
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
