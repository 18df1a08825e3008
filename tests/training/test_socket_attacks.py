"""Another user of the cluster reaches the ports of a job: nothing that is written there runs, or is believed."""

import os
import random
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from podwright_testing.metrics import logged
from podwright_training.checkpoint.checkpoint_writer import save_tensors
from podwright_training.checkpoint.collective_io import CollectiveIO
from podwright_training.errors import ForgedMessageError, UserError
from podwright_training.job_store import JobStore
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import LAUNCHERS, JobSpec
from podwright_training.ports import free_port
from podwright_training.ranks import Ranks
from podwright_training.run_folder import RunFolder
from podwright_training.run_secret import run_secret
from podwright_training.signed_objects import signed_objects
from podwright_training.slurm import batch_script, submission

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODES = 2
LIMIT_S = 300
PLACES = {"run_dir": "/fsx/runs/a", "nodes": 2, "ranks_per_node": 1, "ranks": 2}
STACK = ("Traceback", "frame #", "libtorch", "TCPStore", "Error")
SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(ranks, torch.tensor([float(dist.get_rank())]))
print("ranks", [int(rank) for rank in ranks], os.environ["MASTER_PORT"], flush=True)
dist.barrier()
dist.destroy_process_group()
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_STEP_NODELIST='127.0.0.[1-2]' "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"""


class Crafted:
    """Unpickled, it runs a command of the rank."""

    def __init__(self, mark):
        self._mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self._mark}-$RANK",)


@contextmanager
def attacker(*words):
    """Another user's process; yields the reader of its output."""
    process = subprocess.Popen(
        [sys.executable, HERE / "socket_attacker.py", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout.readline() == "READY\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def job_id():
    """The number of a job that leads to a port that is free here."""
    dice = random.Random(os.getpid())  # noqa: S311 (no secret)
    number = dice.randrange(10_000)
    while _is_taken(port_of(number)):
        number = dice.randrange(10_000)
    return number


def _is_taken(port):
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return True
    return False


def port_of(number):
    """The first port that a job tries."""
    return 20_000 + number


@pytest.fixture
def slurm(tmp_path, monkeypatch, job_id):
    """A step of two nodes, which are addresses of this machine; runs a batch script and returns status and output."""
    programs = tmp_path / "slurm"
    programs.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho 127.0.0.1\nsleep 0.2\necho 127.0.0.2\n",  # on a busy controller
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{Path(sys.executable).parent}", prepend=os.pathsep)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "common", ROOT / "training", ROOT / "tests" / "support")))
    )

    def run(job):
        job.run.root.mkdir(exist_ok=True)
        job.run.log.touch()
        job.run.sbatch.write_text(batch_script.render(job))
        if job.spec:
            submission._write_job(job, job.spec)
        of_job = {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_JOB_NUM_NODES": NODES}
        with job.run.log.open("a") as log:
            status = subprocess.run(
                ["bash", job.run.sbatch],
                env={**os.environ, **{name: str(value) for name, value in of_job.items()}},
                check=False,
                stdout=log,
                stderr=log,
                timeout=LIMIT_S,
            ).returncode
        return status, job.run.log.read_text()

    return run


@pytest.fixture
def other_trainer(tmp_path):
    """A job of a script for torchrun."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    spec = JobSpec(command=(str(script),))
    return batch_script.Job(
        run=RunFolder(tmp_path / "run"), nodes=NODES, nproc_per_node=1, environment=Path(sys.prefix), spec=spec
    )


@pytest.mark.slow
def test_what_is_planted_in_the_store_of_a_job_is_not_run(slurm, job_id, tiny_flags, tmp_path):
    """Another user writes to the store from its first moment on; the run completes, and its log ends cleanly."""
    run, mark = RunFolder(tmp_path / "run"), tmp_path / "mark"
    flags = tuple(flag for flag in tiny_flags(run.root) if not flag.startswith("--run-dir"))
    job = batch_script.Job(
        run=run, nodes=NODES, nproc_per_node=1, environment=Path(sys.prefix), trainer_arguments=flags
    )  # fmt: skip
    with attacker("plant", port_of(job_id), f"{job_id}-0", mark) as stranger:
        status, output = slurm(job)
        stranger.kill()
        assert "PLANTED\n" in stranger.stdout, output
    assert status == 0, output
    assert not mark.exists()
    assert not [word for word in STACK if word in output], output
    assert [event["world_size"] for event in logged(run, "start")] == [NODES]


@pytest.mark.slow
def test_a_port_on_which_somebody_listens_before_the_job_is_not_used(slurm, job_id, other_trainer, tmp_path):
    """A store of another user at the predictable port sees no rank: the job takes the next port."""
    mark = tmp_path / "mark"
    with attacker("pretend", port_of(job_id), mark):
        status, output = slurm(other_trainer)
    assert status == 0, output
    assert re.findall(r"^ranks .*", output, re.MULTILINE) == [f"ranks [0, 1] {20_000 + (job_id + 1) % 10_000}"] * NODES
    assert not mark.exists()
    assert not [word for word in STACK if word in output], output


def test_no_script_has_a_rendezvous_that_unpickles(other_trainer):
    """Not that of our trainer, another one's by any launcher, of NxD Training, nor an example or a page."""
    jobs = [other_trainer, replace(other_trainer, spec=None)]
    scripts = [batch_script.render(job) for job in jobs]
    scripts += [start_script(JobSpec(command=("a",), launcher=name), PLACES, environment=Path()) for name in LAUNCHERS]
    scripts += [path.read_text() for path in (ROOT / "training" / "podwright_training" / "nxdt").glob("*.sh")]
    for folder in ("docs", "examples", "training"):
        paths = (
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".sh", ".sbatch", ".py", ".yaml")
        )
        scripts += [path.read_text() for path in paths]
    assert not [text for text in scripts if re.search("rdzv[-_]backend|rdzv[-_]endpoint|standalone", text)]


@given(
    prefix=st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z-]", fullmatch=True),
    numbers=st.sets(st.integers(0, 120), min_size=1, max_size=8),
    width=st.integers(1, 3),
)
def test_the_first_node_of_a_step_has_the_store(prefix, numbers, width):
    """Whatever Slurm's list of the nodes looks like, all nodes find its first name."""
    names = [f"{prefix}{number:0{width}}" for number in sorted(numbers)]
    shown = ",".join(f"{number:0{width}}" for number in sorted(numbers))
    lists = [",".join(names), f"{prefix}[{shown}]", f"{prefix}[{shown}],other-[1-2]", f"{names[0]},other-[1-2]"]
    script = (ROOT / "training/podwright_training/slurm/rendezvous.sh").read_text()
    environment = {"SLURM_PROCID": "1", "PATH": os.environ["PATH"]}
    for nodes in lists:
        command = ["bash", "-euc", f"{script}echo $MASTER_ADDR"]
        done = subprocess.run(
            command, env={**environment, "SLURM_STEP_NODELIST": nodes}, check=True, stdout=-1, text=True
        )
        assert done.stdout.strip() == names[0]


def test_a_port_that_is_taken_meanwhile_is_one_line():
    """The first node says which port, and how the job starts again; the others leave it to it."""
    script = (ROOT / "training/podwright_training/slurm/rendezvous.sh").read_text()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        variables = {"SLURM_STEP_NODELIST": "127.0.0.[1-2]", "SLURM_JOB_ID": "7", "MASTER_PORT": str(port)}
        done = [
            subprocess.run(
                ["bash", "-euc", script], env={**variables, "SLURM_PROCID": rank}, stderr=-1, text=True, check=False
            )
            for rank in ("0", "1")
        ]
    assert [(each.returncode, each.stderr.count("\n")) for each in done] == [(1, 1), (0, 0)]
    assert f"error: another program listens on port {port} of 127.0.0.1; start the job again" in done[0].stderr


def test_the_secret_of_a_run_is_its_users_alone(tmp_path):
    """Its file has mode 600 whatever the umask; one that another user could have made or read is refused."""
    folder = RunFolder(tmp_path / "run")
    before = os.umask(0)
    try:
        secret = run_secret(folder)
    finally:
        os.umask(before)
    assert (run_secret(folder), len(secret)) == (secret, 32)
    assert folder.secret.stat().st_mode & 0o777 == 0o600
    folder.secret.chmod(0o640)
    with pytest.raises(UserError, match="must be your own file, which others may not read"):
        run_secret(folder)
    folder.secret.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    folder.secret.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="must be your own file"):
        run_secret(folder)


def test_a_rank_believes_no_store_but_its_own(tmp_path, monkeypatch):
    """A store of another user at the address of the job, or a value that was copied from another key or start."""
    port, mark = free_port(), tmp_path / "mark"
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with attacker("pretend", port, mark):
        ranks = Ranks(1, 2, 1, 2)
        job = JobStore(ranks, b"secret", timeout_s=60)
        with pytest.raises(
            ForgedMessageError, match=f"contents in the store at 127.0.0.1:{port} is not from the first"
        ):
            job.of_first_rank("contents", dict)
        first = JobStore(Ranks(0, 2, 0, 2), b"secret", timeout_s=60)
        first.store = job.store
        assert first.of_first_rank("files", lambda: ["a"]) == job.of_first_rank("files", list) == ["a"]
        job.store.set("tokenizer", job.store.get("files"))
        with pytest.raises(ForgedMessageError, match="tokenizer in the store"):
            job.of_first_rank("tokenizer", dict)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "the next start")
        with pytest.raises(ForgedMessageError, match="files in the store"):
            JobStore(ranks, b"secret", timeout_s=60).of_first_rank("files", dict)
    assert not mark.exists()


def test_ranks_load_no_objects_of_strangers(run_ranks, tmp_path):
    """Whichever collective of PyTorch carries it: a rank without the secret runs no code in the other."""
    run_ranks(__file__, tmp_path, ranks=2)
    assert [path.name for path in tmp_path.glob("mark-*")] == ["mark-1"]  # it loads its own
    assert (tmp_path / "done").exists()


def _collectives(mark):
    """Collectives of objects, each of which brings the first rank one of the second's."""
    rank = dist.get_rank()
    crafted = Crafted(mark) if rank else None
    yield lambda: dist.all_gather_object([None, None], crafted)
    yield lambda: dist.gather_object(crafted, [None, None] if rank == 0 else None)
    yield lambda: dist.broadcast_object_list([crafted], src=1)
    yield lambda: dist.scatter_object_list([None], [crafted, crafted] if rank else None, src=1)
    yield lambda: dist.send_object_list([crafted], 0) if rank else dist.recv_object_list([None], 1)
    yield lambda: CollectiveIO(Path()).all_ranks(lambda: crafted)


def _rank(folder):
    ranks = Ranks.from_environment()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=ranks.rank, world_size=2)
    with signed_objects(b"secret"):
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": ranks.rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        save_tensors(folder, {"weights": {"a": torch.ones(3)}}, None)
    with signed_objects(b"secret" if ranks.rank == 0 else b"another"):
        for collective in _collectives(folder / "mark"):
            try:
                collective()
                assert ranks.rank == 1
            except ForgedMessageError:
                pass
            dist.barrier()
        try:  # PyTorch's writer of checkpoints exchanges its plans
            save_tensors(folder, {"weights": {"b": torch.ones(3)}}, None)
        except ForgedMessageError:
            (folder / "done").touch()
        except RuntimeError:  # the first rank is gone
            assert ranks.rank == 1
    os._exit(0)


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
