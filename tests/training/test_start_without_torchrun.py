"""Ranks start by srun, or by a script that sets only some of torchrun's variables; each mistake is one line."""

import os
import socket
import subprocess
import sys

import pytest

from podwright.checkout import ROOT
from podwright_training.errors import UserError
from podwright_training.ranks import Ranks

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE",
)  # fmt: skip
LIMIT_S = 300


def ranks_of(monkeypatch, **variables):
    """Return the ranks that only these variables describe."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return Ranks.from_environment()


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, Ranks()),
        ({"RANK": 0, "WORLD_SIZE": 1}, Ranks()),
        ({"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}, Ranks()),
        (
            {"RANK": 9, "WORLD_SIZE": 16, "LOCAL_RANK": 1, "SLURM_TASKS_PER_NODE": "8(x2)"},
            Ranks(9, 16, 1, 8),
        ),
        ({"RANK": 9, "SLURM_NTASKS": 16, "SLURM_LOCALID": 1, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, Ranks(9, 16, 1, 8)),
        ({"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 3, "SLURM_STEP_TASKS_PER_NODE": "4"}, Ranks(3, 4, 3, 4)),
    ],
)
def test_variables_that_are_missing_follow_from_slurm(monkeypatch, variables, ranks):
    """A single rank needs no more than its number, and srun says how many tasks a node has."""
    assert ranks_of(monkeypatch, **variables) == ranks


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": 0}, "RANK is set, but WORLD_SIZE is not set"),
        ({"RANK": "a", "WORLD_SIZE": 2}, "RANK is 'a', need a whole number"),
        ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}, "LOCAL_WORLD_SIZE is not set"),
        ({"RANK": 0, "WORLD_SIZE": 5, "LOCAL_RANK": 0, "SLURM_TASKS_PER_NODE": "3,2"}, "LOCAL_WORLD_SIZE is not set"),
        ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "SLURM_TASKS_PER_NODE": "8(x2)"}, "LOCAL_WORLD_SIZE is not set"),
        ({"RANK": 2, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, "RANK 2 of WORLD_SIZE 2"),
        ({"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, "do not fit together"),
    ],
)
def test_variables_that_are_missing_or_contradict_each_other(monkeypatch, variables, message):
    """The line names the variable, its value and what to export."""
    with pytest.raises(UserError) as raised:
        ranks_of(monkeypatch, **variables)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def train(flags, *, count, **variables):
    """Start ranks as srun does; return exit status and output of each."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "training")])}
    environment |= {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-m", "podwright_training", "train", *flags]
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    return [process.returncode for process in processes], outputs


@pytest.mark.slow
def test_ranks_of_srun_train_together(tiny_flags, tmp_path):
    """Two ranks that only know their numbers, and Slurm's tasks per node, train one run."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = tiny_flags(tmp_path / "run", max_steps=1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_STEP_TASKS_PER_NODE": "2"}
    statuses, outputs = train(flags, count=2, **address)
    assert statuses == [0, 0], outputs
    assert (tmp_path / "run" / "checkpoints" / "step-00000001").is_dir()


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(tiny_flags, tmp_path):
    """The first rank says which port it is and what to export; the second one that another program is there."""
    flags = tiny_flags(tmp_path / "run", max_steps=1, start_timeout_s=5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": other.getsockname()[1], "LOCAL_WORLD_SIZE": 2}
        statuses, outputs = train(flags, count=2, **address)
    assert statuses == [2, 1]
    assert f"another program listens at 127.0.0.1:{address['MASTER_PORT']} (MASTER_ADDR:MASTER_PORT)" in outputs[0]
    assert "is not the first rank of this run" in outputs[1]
    for output in outputs:
        assert "Traceback" not in output
        assert len([line for line in output.splitlines() if "error: " in line]) == 1


@pytest.mark.slow
def test_an_address_that_is_missing_is_one_line(tiny_flags, tmp_path):
    """Both variables are named."""
    statuses, outputs = train(tiny_flags(tmp_path / "run", max_steps=1), count=2, LOCAL_WORLD_SIZE=2)
    assert statuses == [2, 2]
    assert all("RANK is set, but MASTER_ADDR and MASTER_PORT not" in output for output in outputs)
