"""A run survives a full disk and stops on a read-only one: real file systems, mounted for the test."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.manifest import MANIFEST, TRAINER, check_hashes
from podwright_training.events import EndEvent, ValidationEvent
from podwright_training.loop.metrics import Metrics
from podwright_training.run_folder import RunFolder

FREE_BYTES = 1_500_000  # three checkpoints of the tiny model, not four

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that a few checkpoints fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FREE_BYTES}", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def run(small_disk, tiny_flags, tmp_path):
    """Trains with checkpoints on the small disk, one every other step; the exit status."""

    def run(**options):
        options = {"checkpoint_freq": 2, "keep_checkpoints": 1, "lr": 1e-3, "min_lr": 1e-3, "warmup": 0} | options
        return main(["train", *tiny_flags(tmp_path / "run", ranks=1, checkpoint_dir=small_disk / "kept", **options)])

    return run


def fill(disk):
    """Leave no room on a disk."""
    with (disk / "filler").open("wb") as file:
        file.write(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 100_000))


def last_step(folder):
    return max(event["step"] for event in logged(RunFolder(folder), "train"))


@pytest.mark.slow
def test_a_full_disk_ends_the_run_only_when_it_stays_full(run, small_disk, tmp_path, caplog, capsys):
    """After the third failed save one line ends the run, and the checkpoint before is whole."""
    assert run(max_steps=2) == 0
    fill(small_disk)
    assert run(max_steps=40) == 2
    assert len([line for line in caplog.messages if "No space left on device; training continues" in line]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "No space left on device" in line
    assert 8 <= last_step(tmp_path / "run") < 40
    assert [path.name for path in (small_disk / "kept").glob("step-*")] == ["step-00000002"]
    check_hashes(small_disk / "kept" / "step-00000002")
    (small_disk / "filler").unlink()
    assert run(max_steps=4) == 0
    assert list(logged(RunFolder(tmp_path / "run"), "start"))[-1]["step"] == 2


def test_a_disk_that_is_emptied_in_time_costs_one_checkpoint(run, small_disk, tmp_path):
    """The next save after the failed one succeeds, and the run ends well."""

    class Emptier(logging.Handler):
        def emit(self, record):
            if "training continues" in record.getMessage():
                (small_disk / "filler").unlink(missing_ok=True)

    small_disk.joinpath("kept").mkdir()
    fill(small_disk)
    emptier = Emptier()
    logging.getLogger("podwright_training").addHandler(emptier)
    try:
        assert run(max_steps=6, keep_checkpoints=3) == 0
    finally:
        logging.getLogger("podwright_training").removeHandler(emptier)
    assert [event["step"] for event in logged(RunFolder(tmp_path / "run"), "checkpoint")] == [4, 6]


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(undisturbed, tmp_path, tiny_flags, capsys):
    """Training and export stop and name what is new in it, instead of going on from an older one."""
    shutil.copytree(undisturbed / "checkpoints", tmp_path / "checkpoints")
    newest = step_folder.newest(tmp_path / "checkpoints")
    state = json.loads((newest / "trainer.json").read_text()) | {"curriculum": 3}
    (newest / "trainer.json").write_text(json.dumps(state))
    manifest = json.loads((newest / "manifest.json").read_text())
    content = (newest / "trainer.json").read_bytes()
    manifest["files"]["trainer.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=20)]) == 2
    assert "newer version of podwright-training: trainer.json has curriculum" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def test_a_full_disk_costs_metrics_not_the_run(small_disk, caplog):
    """A line without room is dropped whole, with a warning; the next one that fits is written."""
    metrics = Metrics(small_disk / "metrics.jsonl", active=True)
    values = {"loss": 1.0, "perplexity": 2.7, "tokens": 8}
    metrics.write(ValidationEvent(step=1, **values))
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(b"0" * free.f_bavail * free.f_frsize)
    for step in range(2, 60):
        metrics.write(ValidationEvent(step=step, **values))
    (small_disk / "filler").unlink()
    metrics.write(EndEvent(step=60, reason="max_steps"))
    steps = [event["step"] for event in logged(RunFolder(small_disk))]
    assert "No space left on device; training continues" in caplog.text
    assert steps[:2] == [1, 2]
    assert steps[-1] == 60
    assert len(steps) < 60
    assert "damaged" not in caplog.text


def test_a_failed_last_save_is_an_error(run, small_disk, capsys):
    """Training came to its end, but its last steps are not saved: exit status 2."""
    fill(small_disk)
    assert run(max_steps=2) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((small_disk / "kept").glob("*step-*")) == []


def test_a_disk_that_becomes_read_only_ends_the_run(run, small_disk, tmp_path, capsys):
    """No step is taken that nothing will keep; one line says why, and the newest checkpoint is whole."""

    def remount():
        while not list(small_disk.glob("kept/step-*")):
            time.sleep(0.01)
        while subprocess.run(["mount", "-o", "remount,ro", small_disk], capture_output=True, check=False).returncode:
            time.sleep(0.01)  # a file is open for writing

    thread = threading.Thread(target=remount)
    thread.start()
    assert run(max_steps=2000) == 2
    thread.join()
    assert "Read-only file system" in capsys.readouterr().err
    newest = step_folder.newest(small_disk / "kept")
    check_hashes(newest)
    assert last_step(tmp_path / "run") <= int(newest.name.removeprefix("step-")) + 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [MANIFEST, TRAINER])
@pytest.mark.parametrize("damage", [os.mkfifo, Path.mkdir, lambda path: path.write_bytes(b"[" * 60_000)])
def test_an_odd_file_in_the_newest_checkpoint_is_passed_over(undisturbed, tmp_path, tiny_flags, name, damage):
    """A pipe, a folder and JSON that is too deep: the run goes on from the checkpoint before, and nothing waits."""
    shutil.copytree(undisturbed, tmp_path / "run")
    newest, older, *_ = step_folder.intact(tmp_path / "run" / "checkpoints")
    (newest / name).unlink()
    damage(newest / name)
    assert main(["train", *tiny_flags(tmp_path / "run", ranks=1)]) == 0
    assert list(logged(RunFolder(tmp_path / "run"), "start"))[-1]["resumed_from"].endswith(older.name)
