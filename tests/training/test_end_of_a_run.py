"""The last line of a run says what to do next."""

import pytest

from podwright_training.config.train_config import TrainConfig
from podwright_training.loop.progress import RunProgress
from podwright_training.loop.run import last_line

RUN_DIR = "runs/my run"
REPORT = "next: podwright-train report --run-dir 'runs/my run'"
CONSOLIDATE = "podwright-train consolidate --run-dir 'runs/my run'"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No job, no elastic run."""
    for name in ("SLURM_JOB_ID", "PODWRIGHT_GENERATION"):
        monkeypatch.delenv(name, raising=False)


def test_a_complete_run_is_reported_and_exported(monkeypatch):
    """In a job of a cluster it can also be fetched; both commands work in any shell."""
    progress = RunProgress(max_steps=3, step=3)
    config = TrainConfig(run_dir=RUN_DIR)
    assert last_line(config, progress) == f"{REPORT}; {CONSOLIDATE}"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert last_line(config, progress) == (
        f"{REPORT}; {CONSOLIDATE}; on your machine: podwright fetch 'my run' --export"
    )


def test_the_weights_of_a_range_are_of_no_use():
    """Only the report is named."""
    assert last_line(TrainConfig(run_dir=RUN_DIR), RunProgress(max_steps=9, step=3, has_range_ended=True)) == REPORT


def test_a_stopped_run_goes_on():
    """The same command continues."""
    line = last_line(TrainConfig(run_dir=RUN_DIR), RunProgress(max_steps=9000, step=2000))
    assert line == "next: the same command goes on behind step 2,000"
