"""A request to stop, at each place of a run: the checkpoint comes first."""

import os
import signal
import threading
import time

import pytest

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.loop.global_batch import GlobalBatchReader
from podwright_training.loop.run_log import RunLog
from podwright_training.loop.trainer import Trainer
from podwright_training.parallel import ParallelModel
from podwright_training.run_folder import RunFolder

KILL_WAIT_S = 30  # Slurm's default
VALIDATION_S = 300
STEPS = {"max_steps": 9, "validation_freq": 1, "checkpoint_freq": 100, "ranks": 1}


@pytest.fixture
def signalled(monkeypatch):
    """Sends this process a signal at the first call of a method; returns the list of its calls."""

    def signalled(kind, name, number=signal.SIGTERM):
        calls, method = [], getattr(kind, name)

        def signal_and_call(*arguments, **options):
            if not calls:
                os.kill(os.getpid(), number)
            calls.append(name)
            return method(*arguments, **options)

        monkeypatch.setattr(kind, name, signal_and_call)
        return calls

    return signalled


def _kinds(run_dir):
    return [event["event"] for event in logged(RunFolder(run_dir))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_validation_ends_at_its_next_batch(tiny_flags, tmp_path, signalled, number):
    """However many batches are left, the checkpoint is written next, and the numbers so far are not logged."""
    calls = signalled(ParallelModel, "evaluate", number)
    assert main(["train", *tiny_flags(tmp_path, validation_sequences=64, val_batch_size=2, **STEPS)]) == 0
    assert len(calls) == 1
    assert _kinds(tmp_path) == ["start", "files", "files", "data", "train", "checkpoint", "end"]


@pytest.mark.slow
def test_a_long_validation_ends_before_slurm_kills(tiny_flags, tmp_path, monkeypatch):
    """Slurm sends SIGKILL KillWait after SIGTERM. A validation of 5 minutes ends in time, with a checkpoint."""
    evaluate, batches = ParallelModel.evaluate, []

    def evaluate_slowly(*arguments, **options):
        if not batches:
            killer.start()
            os.kill(os.getpid(), signal.SIGTERM)
        batches.append(time.monotonic())
        time.sleep(VALIDATION_S / (sequences / 2))
        return evaluate(*arguments, **options)

    sequences = 64
    killer = threading.Timer(KILL_WAIT_S, os._exit, [128 + signal.SIGKILL])
    monkeypatch.setattr(ParallelModel, "evaluate", evaluate_slowly)
    try:
        assert main(["train", *tiny_flags(tmp_path, validation_sequences=sequences, val_batch_size=2, **STEPS)]) == 0
    finally:
        killer.cancel()
    assert len(batches) == 1
    assert _kinds(tmp_path)[-2:] == ["checkpoint", "end"]
    (checkpoint,) = step_folder.intact(RunFolder(tmp_path).checkpoints)
    assert step_folder.step_of(checkpoint) == 1


def test_samples_end_at_their_next_token(tiny_flags, tmp_path, signalled):
    """A text with a part of what the model adds is not logged."""
    prompts = tmp_path / "prompts"
    prompts.write_text("the node\n")
    calls = signalled(ParallelModel, "next_tokens")
    flags = tiny_flags(tmp_path / "run", sample_prompts=prompts, sample_tokens=8, **STEPS)
    assert main(["train", *flags]) == 0
    assert len(calls) == 1
    assert _kinds(tmp_path / "run") == ["start", "files", "files", "data", "train", "validation", "checkpoint", "end"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(GlobalBatchReader, "read"), (Trainer, "_compute_gradient"), (Trainer, "_clip_gradient")],
)
def test_after_a_step_the_checkpoint_comes_before_validation(tiny_flags, tmp_path, signalled, kind, method):
    """A request during a step is seen before that step's validation, or in it."""
    signalled(kind, method)
    assert main(["train", *tiny_flags(tmp_path, **STEPS)]) == 0
    assert _kinds(tmp_path)[-2:] == ["checkpoint", "end"]
    assert "validation" not in _kinds(tmp_path)
    (checkpoint,) = step_folder.intact(RunFolder(tmp_path).checkpoints)
    assert step_folder.step_of(checkpoint) <= 2


@pytest.mark.parametrize(("kind", "method"), [(CheckpointStore, "restore"), (RunLog, "start")])
def test_a_request_before_the_first_step_takes_none(tiny_flags, tmp_path, signalled, kind, method):
    """The first step compiles and may take minutes; there is nothing to save, and the next start goes on."""
    signalled(kind, method)
    assert main(["train", *tiny_flags(tmp_path, **STEPS)]) == 0
    assert _kinds(tmp_path) == ["start", "files", "files", "data", "end"]
    (end,) = logged(RunFolder(tmp_path), "end")
    assert end["reason"] == "signal"


def test_a_request_during_a_save_ends_after_it(tiny_flags, tmp_path, signalled):
    """The save is finished, and the step after it saved."""
    signalled(CheckpointStore, "save")
    flags = STEPS | {"checkpoint_freq": 2, "async_checkpoints": False}
    assert main(["train", *tiny_flags(tmp_path, **flags)]) == 0
    steps = [step_folder.step_of(path) for path in step_folder.intact(RunFolder(tmp_path).checkpoints)]
    assert steps == [3, 2]
