"""A folder that cannot be read is an error that names it; ``Path.glob`` skips it, as if it had no files."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwright_training import model_folder
from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.collective_io import CheckpointError, DamagedCheckpointError
from podwright_training.curation.dataset_manifest import entries, steps_of
from podwright_training.data.token_shards import remove_unfinished
from podwright_training.elastic.terms import Terms
from podwright_training.folder_listing import paths_below, paths_in
from podwright_training.run_claim import claim_of_run
from podwright_training.run_folder import RunFolder, recover_folders
from podwright_training.transformers_model import load_model
from podwright_training.validation.files import FILES, remove_files


@pytest.fixture
def unreadable_folders(monkeypatch):
    """Paths of folders that the system refuses to list; root, who may run these tests, could list them all."""
    folders = set()

    def guarded(list_folder):
        def listed(path="."):
            if Path(path) in folders:
                raise PermissionError(13, "Permission denied", str(path))
            return list_folder(path)

        return listed

    monkeypatch.setattr(os, "listdir", guarded(os.listdir))
    monkeypatch.setattr(os, "scandir", guarded(os.scandir))
    return folders


def test_paths_in_a_folder_are_sorted(tmp_path):
    """Names match as a whole, hidden ones too; a folder that does not exist has none."""
    for name in ("b.json", "a.json", ".c.json", "d.JSON", "e.json.old"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "f.json").touch()
    assert paths_in(tmp_path, "*.json") == [tmp_path / ".c.json", tmp_path / "a.json", tmp_path / "b.json"]
    assert paths_in(tmp_path / "absent", "*") == []
    assert paths_below(tmp_path, "[af].json") == [tmp_path / "a.json", tmp_path / "below" / "f.json"]


def test_a_subfolder_that_cannot_be_read_is_named(tmp_path, unreadable_folders):
    """The results of lm-evaluation-harness are in a folder of the model's name."""
    unreadable_folders.add(tmp_path / "model")
    (tmp_path / "model").mkdir()
    with pytest.raises(PermissionError) as caught:
        paths_below(tmp_path, "results_*.json")
    assert caught.value.filename == str(tmp_path / "model")


@pytest.mark.parametrize(("name", "read"), [
    ("checkpoints", step_folder.newest),
    ("checkpoints", step_folder.find),
    ("terms", lambda folder: Terms(folder).newest()),
    (RunFolder(Path()).claims.name, lambda folder: claim_of_run(RunFolder(folder.parent)).check()),
    ("models", recover_folders),
    ("shards", lambda folder: list(entries(folder))),
    ("logs/documents/stats", lambda folder: list(steps_of(folder.parents[2]))),
    ("dataset", remove_unfinished),
    (FILES, lambda folder: remove_files(folder.parent)),
])  # fmt: skip
def test_a_folder_that_cannot_be_read_is_named(tmp_path, unreadable_folders, name, read):
    """Else a run begins at step 0 although it has checkpoints, and two jobs train it although one claimed it."""
    folder = tmp_path / name
    folder.mkdir(parents=True)
    unreadable_folders.add(folder)
    with pytest.raises(PermissionError) as caught:
        read(folder)
    assert caught.value.filename == str(folder)


def test_all_ranks_name_a_folder_of_checkpoints_that_cannot_be_read(tmp_path, unreadable_folders):
    """The first rank lists it for all."""
    unreadable_folders.add(tmp_path)
    with pytest.raises(CheckpointError, match=rf"cannot use {tmp_path}: Permission denied"):
        step_folder.agree_on_intact([tmp_path])


@contextmanager
def rights_of_a_user():
    """Give this process the rights of an ordinary user, whom permissions bind."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_checkpoint_that_cannot_be_read_is_not_damaged():
    """Else a run would begin again at step 0, and delete the checkpoint when it comes to its step."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        checkpoint = directory / "step-00000004"
        checkpoint.mkdir()
        assert isinstance(step_folder.damage_of(checkpoint), DamagedCheckpointError)
        checkpoint.chmod(0o000)
        with rights_of_a_user(), pytest.raises(CheckpointError) as caught:
            step_folder.damage_of(checkpoint)
        assert str(caught.value) == f"cannot read checkpoint {checkpoint}: manifest.json: Permission denied"
        with rights_of_a_user(), pytest.raises(CheckpointError, match="cannot read checkpoint"):
            step_folder.agree_on_intact([directory])


def test_a_model_folder_that_cannot_be_read_is_named(tmp_path, unreadable_folders):
    """The message is not that the model has no tokenizer."""
    (tmp_path / model_folder.CONFIG).write_text("{}")
    unreadable_folders.add(tmp_path)
    with pytest.raises(PermissionError) as caught:
        load_model(tmp_path)
    assert caught.value.filename == str(tmp_path)
