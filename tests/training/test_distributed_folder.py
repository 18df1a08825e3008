"""Checkpoints of other trainers may have been made by anybody: what does not fit is one line, and nothing waits."""

import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties

from podwright_training.checkpoint.collective_io import DamagedCheckpointError
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.tensor_stream import StreamedTensor, write_stream

FILE = "__0_0.distcp"


@pytest.fixture
def folder(tmp_path):
    """A folder with a tensor and a value."""
    tensor = torch.ones(4, 2)
    write_stream(tmp_path, {"weight": StreamedTensor((4, 2), torch.float32, lambda: tensor)}, {"value": "text"})
    return tmp_path


def edit(folder, change):
    """Change the index of a folder."""
    index = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 -- written above
    change(index)
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def changing_places(**values):
    """Return an edit that changes where everything is."""

    def change(index):
        for place in index.storage_data.values():
            for name, value in values.items():
                setattr(place, name, value)

    return change


def changing_weight(**values):
    """Return an edit that changes the shape, dtype or chunks of the tensor."""

    def change(index):
        for name, value in values.items():
            setattr(index.state_dict_metadata["weight"], name, value)

    return change


def chunk(*sizes):
    """Return a chunk at the beginning of a tensor."""
    return ChunkStorageMetadata(torch.Size([0] * len(sizes)), torch.Size(sizes))


def read(folder):
    """Read everything."""
    checkpoint = DistributedFolder(folder)
    checkpoint.value("value")
    return checkpoint.read_whole("weight")


@pytest.mark.parametrize(
    "change",
    [
        lambda index: setattr(index, "storage_data", [1]),
        lambda index: setattr(index, "state_dict_metadata", [1]),
        lambda index: index.state_dict_metadata.update({5: index.state_dict_metadata["weight"]}),
        changing_places(relative_path=5),
        changing_places(relative_path=None),
        changing_places(relative_path=[5]),
        changing_places(offset="a"),
        changing_places(offset=-5),
        changing_places(length=10**19),
        changing_weight(size=None),
        changing_weight(size=torch.Size([])),
        changing_weight(size=torch.Size([-1, 2])),
        changing_weight(chunks=None),
        changing_weight(chunks=[chunk(4)]),
        changing_weight(properties=None),
    ],
)
def test_an_index_with_values_of_other_types_is_damaged(change, folder):
    """A pickle may have any types."""
    edit(folder, change)
    with pytest.raises(DamagedCheckpointError, match=r"\.metadata has values of types that no index of tensors has"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changing_weight(chunks=[]), "it has not all of weight"),
        (changing_weight(chunks=[chunk(2, 2)]), "weight is torch.float32 with 8 elements in its file, .* with 4 in"),
        (changing_weight(chunks=[chunk(4, 2)], size=torch.Size([6, 2])), r"it has not all of weight from \[0, 0\] on"),
        (changing_weight(properties=TensorProperties(dtype=torch.int32)), "is torch.float32 .*, torch.int32 with 8"),
        (changing_places(length=10**12), "__0_0.distcp ends within value"),
        (changing_places(relative_path="gone"), "names gone, which is missing"),
        (lambda index: index.storage_data.clear(), "weight is in no file"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_damaged(change, message, folder):
    """No memory that nothing was read into becomes a weight."""
    edit(folder, change)
    with pytest.raises(DamagedCheckpointError, match=message):
        read(folder)


@pytest.mark.parametrize("name", [FILE, ".metadata"])
def test_a_pipe_is_not_waited_for(name, folder):
    """Nobody writes into it."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(Exception, match=r"is a pipe, not a regular file|has no \.metadata"):
        read(folder)


def test_a_link_to_a_device_is_not_read(folder):
    """It never ends."""
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("/dev/zero")
    with pytest.raises(DamagedCheckpointError, match="is a device, not a regular file"):
        read(folder)


def test_nobody_is_advised_to_run_the_code_of_a_file(folder):
    """PyTorch's message recommends weights_only=False."""
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content.replace(b"text", b"\xff\xff\xff\xff").replace(b"data.pkl", b"data.xyz"))
    with pytest.raises(DamagedCheckpointError) as caught:
        read(folder)
    assert "its bytes are damaged, or name a class or function that no checkpoint needs" in str(caught.value)
    assert "weights_only" not in str(caught.value)
