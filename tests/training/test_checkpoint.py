"""Only whole checkpoints count."""

import dataclasses
import enum
import hashlib
import io
import json
import logging
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint import checkpoint_reader, step_folder, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError, DamagedCheckpointError
from podwright_training.config.architecture import ModelConfig
from podwright_training.device import process_group
from podwright_training.model import LlamaForCausalLM
from podwright_training.ranks import Ranks
from podwright_training.run_folder import RunFolder, commit_folder, recover_folders


@pytest.fixture
def copied(undisturbed, tmp_path):
    """A run's folder to be damaged; its checkpoints are of steps 4, 8 and 12."""
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    return tmp_path


def flip_a_bit(path):
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damages():
    """Ways in which the newest checkpoint may be damaged, each with what is said of it."""

    def cut(path):
        with (path / "__0_0.distcp").open("rb+") as file:
            file.truncate(100)

    return {
        "has 100 bytes": cut,
        "rng-00001.pt is missing": lambda path: (path / "rng-00001.pt").unlink(),
        "manifest.json": lambda path: (path / "manifest.json").unlink(),
    }


@pytest.mark.parametrize("message", damages())
def test_a_damaged_checkpoint_is_skipped_and_named(copied, caplog, message):
    """The one before it is the newest then; a warning says why."""
    damages()[message](copied / "checkpoints" / "step-00000012")
    with caplog.at_level(logging.WARNING):
        assert step_folder.newest(copied / "checkpoints").name == "step-00000008"
    assert "step-00000012 is damaged" in caplog.text
    assert message in caplog.text


@pytest.mark.slow
def test_changed_content_is_found_when_it_is_loaded(copied, tiny_flags, caplog):
    """A flipped bit: training resumes from the checkpoint before, and arrives at the same weights."""
    flip_a_bit(copied / "checkpoints" / "step-00000012" / "__0_0.distcp")
    assert main(["train", *tiny_flags(copied, ranks=1)]) == 0
    assert list(logged(RunFolder(copied), "start"))[-1]["step"] == 8
    assert "the content of __0_0.distcp has changed; skipped" in caplog.text
    first, second = (event["loss"] for event in logged(RunFolder(copied), "validation"))
    assert second == pytest.approx(first, abs=1e-5)


@pytest.mark.slow
def test_what_a_kill_left_half_written_is_no_checkpoint(copied, tiny_flags):
    """Hidden folders do not count and are cleared away by the next save."""
    newest = copied / "checkpoints" / "step-00000012"
    newest.rename(newest.with_name(".step-00000012.partial"))
    assert step_folder.newest(copied / "checkpoints").name == "step-00000008"
    assert main(["train", *tiny_flags(copied, ranks=1)]) == 0
    names = sorted(path.name for path in (copied / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008", "step-00000012"]


def replace(folder, content):
    """Give a folder of this content the name that another one may have."""
    partial = folder / ".step-00000004.partial"
    partial.mkdir(exist_ok=True)
    (partial / "content").write_text(content)
    commit_folder(partial, folder / "step-00000004")


@pytest.mark.parametrize("calls", range(6))
def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new(tmp_path, monkeypatch, calls):
    """Whatever was renamed and deleted by then; the next one replaces what is there, and nothing else is left."""
    replace(tmp_path, "old")
    left = iter(range(calls))

    def until_killed(action):
        def act(*arguments, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return action(*arguments, **options)

        return act

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", until_killed(Path.rename))
        patch.setattr(shutil, "rmtree", until_killed(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            replace(tmp_path, "new")
    recover_folders(tmp_path)
    found = (tmp_path / "step-00000004" / "content").read_text()
    assert found == ("old" if calls < 3 else "new")
    replace(tmp_path, "newer")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]
    assert (tmp_path / "step-00000004" / "content").read_text() == "newer"


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_that_was_put_aside(copied, tiny_flags):
    """It has its name again if the new one has not; the next save clears away the rest."""
    folder = copied / "checkpoints"
    for step in (4, 8):
        shutil.rmtree(folder / f"step-{step:08}")
    (folder / "step-00000012").rename(folder / ".step-00000012.replaced")
    (folder / ".step-00000012.partial").mkdir()
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=13)]) == 0
    assert list(logged(RunFolder(copied), "start"))[-1]["step"] == 12
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000012", "step-00000013"]


@pytest.mark.slow
def test_the_newest_are_kept(tiny_flags, tmp_path):
    """Retention deletes the oldest, but for every n-th."""
    options = {"max_steps": 7, "checkpoint_freq": 1, "keep_checkpoints": 2, "keep_every": 3}
    assert main(["train", *tiny_flags(tmp_path, ranks=1, **options)]) == 0
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000006", "step-00000007"]


def test_a_damaged_checkpoint_does_not_count_as_kept(copied):
    """Two intact ones are kept besides a damaged one between them; what is older than both goes."""
    (copied / "checkpoints" / "step-00000008" / "manifest.json").unlink()
    folder = copied / "checkpoints"
    with process_group(Ranks(), torch.device("cpu")):
        step_folder.retain(folder, newest=2)
        assert len(list(folder.iterdir())) == 3
        step_folder.retain(folder, newest=1)
    assert [path.name for path in folder.iterdir()] == ["step-00000012"]


def test_weights_of_another_model_are_not_loaded(undisturbed):
    """A key too many or too few is an error, not a silence."""
    path = step_folder.newest(undisturbed / "checkpoints")
    config = trainer_state.model_config(path)
    tied = LlamaForCausalLM(ModelConfig.from_dict({**vars(config), "tie_word_embeddings": True, "rope_scaling": None}))
    with pytest.raises(
        CheckpointError, match=r"0 tensors are missing in it, 1 are not in this model \(model.lm_head.weight"
    ):
        checkpoint_reader.load_weights(tied, path)


def test_changed_weights_are_not_loaded(copied, model_of):
    """Loading for export verifies the hashes too."""
    path = copied / "checkpoints" / "step-00000012"
    flip_a_bit(path / "__1_0.distcp")
    with pytest.raises(DamagedCheckpointError, match=r"the content of __1_0\.distcp has changed"):
        model_of(path)


@pytest.mark.slow
def test_a_save_that_fails_leaves_the_older_ones(copied, tiny_flags, capsys):
    """A checkpoint that fails is one line, and the newest one stays valid."""
    obstacle = copied / "checkpoints" / ".step-00000016.partial"
    obstacle.write_text("a file where a folder must be")
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=16)]) == 2
    assert f"error: cannot use {obstacle}: Not a directory" in capsys.readouterr().err
    assert step_folder.newest(copied / "checkpoints").name == "step-00000012"


def test_the_manifest_lists_every_other_file(undisturbed):
    """Nothing in a checkpoint is unaccounted for."""
    path = step_folder.newest(undisturbed / "checkpoints")
    listed = json.loads((path / "manifest.json").read_text())["files"]
    assert set(listed) | {"manifest.json"} == {file.name for file in path.iterdir()}


MANIFESTS = {
    "empty": {"files": {}},
    "a list": [],
    "a list of files": {"files": ["trainer.json"]},
    "a size that is text": {"files": {"trainer.json": {"bytes": "1", "sha256": "0" * 64}}},
    "a file without its hash": {"files": {"trainer.json": {"bytes": 1}}},
    "a file elsewhere": {"files": {"trainer.json": {}, "../x": {"bytes": 1, "sha256": "0" * 64}}},
}


@pytest.mark.parametrize("content", MANIFESTS)
def test_a_manifest_that_lists_no_files_is_damage(tmp_path, caplog, content):
    """Valid JSON that is no list of files, an empty one too, does not count as a checkpoint."""
    path = tmp_path / "step-00000004"
    path.mkdir()
    (path / "trainer.json").write_text("{")
    (path / "manifest.json").write_text(json.dumps(MANIFESTS[content]))
    assert step_folder.newest(tmp_path) is None
    assert "is damaged: manifest.json" in caplog.text


def test_changed_trainer_state_is_found_before_it_is_read(copied, tiny_flags, caplog):
    """A flipped bit in ``trainer.json``: preflight and resume use the checkpoint before."""
    flip_a_bit(copied / "checkpoints" / "step-00000012" / "trainer.json")
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=9)]) == 0
    assert list(logged(RunFolder(copied), "start"))[-1]["step"] == 8
    assert "the content of trainer.json has changed; skipped" in caplog.text


def test_a_file_that_the_manifest_does_not_list_is_refused(copied, caplog):
    """Files that were added to a checkpoint are not read."""
    (copied / "checkpoints" / "step-00000012" / "rng-00007.pt").write_bytes(b"")
    assert step_folder.newest(copied / "checkpoints").name == "step-00000008"
    assert "rng-00007.pt is not in its manifest.json" in caplog.text


class Crafted:
    """Unpickled, it runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def rewrite(path, name, content):
    """Replace a file and its entry in the manifest, as someone would who crafts a checkpoint."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_crafted_checkpoint_runs_no_code(copied, tmp_path):
    """The index of the tensors is refused if it names anything that no index has."""
    path, mark = copied / "checkpoints" / "step-00000012", tmp_path / "executed"
    rewrite(path, ".metadata", pickle.dumps(Crafted(f"touch {mark}")))
    with pytest.raises(DamagedCheckpointError, match=r"system is not part of an index of tensors"):
        checkpoint_reader.shapes(path)
    assert not mark.exists()


def test_a_weight_that_is_declared_as_bytes_runs_no_code(copied, tiny_flags, tmp_path, capsys):
    """PyTorch's loader unpickles bytes with every class; ours finds that a tensor is missing, and reads nothing."""
    path, mark = copied / "checkpoints" / "step-00000012", tmp_path / "executed"
    name = "model.model.norm.weight"
    index = pickle.loads((path / ".metadata").read_bytes())  # noqa: S301 (our own)
    place, info = next(item for item in index.storage_data.items() if item[0].fqn == name)
    payload = io.BytesIO()
    torch.save(Crafted(f"touch {mark}"), payload)
    file = (path / info.relative_path).read_bytes()
    del index.storage_data[place]
    begin = {"offset": len(file), "length": len(payload.getvalue())}
    index.storage_data[MetadataIndex(name)] = dataclasses.replace(info, **begin)
    index.state_dict_metadata[name] = BytesStorageMetadata()
    rewrite(path, info.relative_path, file + payload.getvalue())
    rewrite(path, ".metadata", pickle.dumps(index))

    model = LlamaForCausalLM(trainer_state.model_config(path))
    with pytest.raises(CheckpointError, match="1 tensors are missing in it"):
        checkpoint_reader.load_weights(model, path)
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=13)]) == 2
    assert "1 tensors are missing in it" in capsys.readouterr().err
    assert not mark.exists()
    load_tensors({"model": {"model.norm.weight": torch.ones(32)}}, checkpoint_id=path, no_dist=True)
    assert mark.exists()  # it would have run


def test_tensors_that_cannot_be_read_end_the_run_in_one_line(copied, tiny_flags, capsys):
    """A file that PyTorch has not written, with a manifest made for it, is named; nothing of it runs."""
    path = copied / "checkpoints" / "step-00000012"
    name = next(file.name for file in path.glob("*.distcp"))
    rewrite(path, name, b"x" * (path / name).stat().st_size)
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=13)]) == 2
    printed = capsys.readouterr().err
    assert "step-00000012 has the hashes of its manifest, but is unreadable" in printed
    assert "Traceback" not in printed


class PicklerOfDebian12(pickle.Pickler):
    """Pickles an enumeration's member as Python 3.11.2 does, which hosts have."""

    def reducer_override(self, obj):
        return (getattr, (type(obj), obj.name)) if isinstance(obj, enum.Enum) else NotImplemented


def pickled(content):
    """Return what Python 3.11.2 writes."""
    file = io.BytesIO()
    PicklerOfDebian12(file).dump(content)
    return file.getvalue()


def test_an_index_of_python_3_11_2_is_read(copied):
    """Python 3.11.0 to 3.11.3 pickle an enumeration's member as an attribute of its class."""
    path = copied / "checkpoints" / "step-00000012"
    expected = checkpoint_reader.shapes(path)
    metadata = pickle.loads((path / ".metadata").read_bytes())  # noqa: S301 (our own)
    rewrite(path, ".metadata", pickled(metadata))
    assert b"getattr" in (path / ".metadata").read_bytes()
    assert checkpoint_reader.shapes(path) == expected


@pytest.mark.parametrize(("owner", "name"), [(torch.Size, "count"), (_MEM_FORMAT_ENCODING, "mro")])
def test_an_index_reads_no_other_attribute(copied, owner, name):
    """An attribute that is no member of that enumeration is refused."""

    class Attribute:
        def __reduce__(self):
            return getattr, (owner, name)

    path = copied / "checkpoints" / "step-00000012"
    rewrite(path, ".metadata", pickle.dumps(Attribute()))
    with pytest.raises(DamagedCheckpointError, match=r"is not part of an index of tensors"):
        checkpoint_reader.shapes(path)


def test_an_index_cannot_name_files_elsewhere(copied):
    """Tensors are read from the checkpoint's own files only."""
    path = copied / "checkpoints" / "step-00000012"
    content = (path / ".metadata").read_bytes()
    rewrite(path, ".metadata", content.replace(b"__0_0.distcp", b"../../__0_0x"))
    with pytest.raises(DamagedCheckpointError, match=r"names \.\./\.\./__0_0x, which is not in its manifest"):
        checkpoint_reader.shapes(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "muon"}, "belongs to another optimizer: resume with the --optimizer it was saved with"),
        ({"ema_decay": 0.9}, "has no moving average of the weights: resume without ema_decay"),
    ],
)
def test_another_optimizer_is_named(copied, tiny_flags, capsys, options, message):
    """A resume with another optimizer, or with an average that was not kept, says so, not "another model"."""
    assert main(["train", *tiny_flags(copied, ranks=1, max_steps=16, **options)]) == 2
    assert message in capsys.readouterr().err
