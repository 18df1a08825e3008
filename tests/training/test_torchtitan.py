"""Checkpoints move from and to torchtitan: the losses after the move are those of torchtitan.

torchtitan's own code wrote the checkpoints in ``torchtitan/`` and computed what follows them
(``torchtitan/train_torchtitan.py``).
"""

import json
import shutil
import sys
import tarfile
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from podwright_training.__main__ import main
from podwright_training.batch import Batch
from podwright_training.checkpoint import step_folder
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.checkpoint.tensor_stream import StreamedTensor, write_stream
from podwright_training.checkpoint.trainer_state import read_state
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import process_group
from podwright_training.loop import initial_weights
from podwright_training.loop.schedule import learning_rate
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.ranks import Ranks
from podwright_training.spelling import as_flag

RECORDED = Path(__file__).parent / "torchtitan"
CPU = torch.device("cpu")
OPTIONS = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "max_context_width": 16,
    "model_type": "llama_v3",
    "max_steps": 100,
    "lr": 0.01,
    "warmup": 0.05,
    "lr_schedule": "wsd",
    "beta2": 0.95,
    "weight_decay": 0.1,
    "bf16": False,
    "activation_checkpointing": False,
}
QWEN3 = {"qk_norm": True, "head_dim": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
RECORDINGS = {  # name: (options that differ, trainer to export to)
    "llama3": ({"rope_scaling_factor": 8}, "torchtitan"),
    "llama3-0.2": ({"rope_scaling_factor": 8, "weight_decay": 0}, "torchtitan-0.2"),
    "qwen3": (QWEN3, "torchtitan"),
    "qwen3-split": (QWEN3, "torchtitan"),
}


@pytest.fixture
def recorded(tmp_path):
    """A folder with a checkpoint that torchtitan wrote, and what it computed from there."""

    def recorded(name):
        with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    return recorded


def imported(source, output, *more, **options):
    """Import a checkpoint with the options of its run; return the exit status."""
    flags = [as_flag(name, value) for name, value in {**OPTIONS, **options}.items()]
    command = ["import-checkpoint", "--from", "torchtitan", "--source", str(source), "--output", str(output)]
    return main([*command, *flags, *more])


def batch(step):
    """The tokens of a step, as in ``train_torchtitan.py``."""
    sequences = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(step))
    return Batch(sequences[:, :-1], sequences[:, 1:])


def run_folder(tmp_path, checkpoints, **options):
    """A run that has the checkpoints."""
    root = tmp_path / "run"
    root.mkdir()
    shutil.copytree(checkpoints, root / "checkpoints")
    (root / "config.yaml").write_text(TrainConfig(**{**OPTIONS, **options, "run_dir": str(root)}).to_yaml())
    return root


@pytest.mark.parametrize("name", RECORDINGS)
def test_losses_after_the_import_are_those_of_torchtitan(name, recorded, tmp_path):
    """Logits, learning rates and the losses of the next steps, by AdamW with the imported moments."""
    options, _ = RECORDINGS[name]
    folder = recorded(name)
    assert imported(folder / "step-3", tmp_path / "start", **options) == 0
    expected = json.loads((folder / "continued.json").read_text())
    config = TrainConfig(**{**OPTIONS, **options, "init_from": str(tmp_path / "start"), "init_state": "all"})
    assert not list(initial_weights.problems(tmp_path / "start", config))
    with process_group(Ranks(), CPU):
        model = ParallelModel(config, Ranks(), CPU, initialize=False)
        optimizers = Optimizers(model.named_parameters(), config)
        optimizers.allocate()
        state = initial_weights.load(tmp_path / "start", config, model=model, optimizers=optimizers)
        assert state.step == expected["step"]
        losses, learning_rates = [], []
        for step in range(state.step + 1, state.step + 1 + len(expected["losses"])):
            learning_rates.append(learning_rate(step, config))
            losses.append(model.forward_backward([batch(step)], tokens=64).item())
            optimizers.step(lr=learning_rates[-1])
    assert learning_rates == pytest.approx(expected["learning_rates"])
    assert losses == pytest.approx(expected["losses"], abs=2e-5)


@pytest.mark.parametrize("name", RECORDINGS)
def test_logits_after_the_import_are_those_of_torchtitan(name, recorded, tmp_path, model_of):
    """The rows of queries and keys are in the order that this model's rotation needs."""
    options, _ = RECORDINGS[name]
    folder = recorded(name)
    assert imported(folder / "step-3", tmp_path / "start", **options) == 0
    expected = json.loads((folder / "continued.json").read_text())["logits"]
    with torch.no_grad():
        logits = model_of(tmp_path / "start" / "step-00000003")(batch(0).tokens_BT[:1, :4])
    assert logits.flatten().tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["llama3", "llama3-0.2", "qwen3"])
def test_an_export_is_what_torchtitan_wrote(name, recorded, tmp_path):
    """Import and export give each tensor bit by bit, and each number that torchtitan's code loads."""
    options, trainer = RECORDINGS[name]
    folder = recorded(name)
    assert imported(folder / "step-3", tmp_path / "start", **options) == 0
    root = run_folder(tmp_path, tmp_path / "start", **options)
    output = tmp_path / "outputs"
    assert main(["export-checkpoint", "--to", trainer, "--run-dir", str(root), "--output", str(output)]) == 0
    theirs = DistributedFolder(folder / "step-3")
    ours = DistributedFolder(output / "step-3")
    assert ours.entries.keys() == theirs.entries.keys()
    for key in theirs.entries:
        assert torch.equal(ours.read_whole(key), theirs.read_whole(key)), key
    values = theirs.names_of_values()
    moved = {key for key in values if not key.startswith("dataloader.")} - {"train_state.ntokens_seen"}
    assert ours.names_of_values() - {"train_state.ntokens_seen"} == moved
    for key in moved:
        assert ours.value(key) == pytest.approx(theirs.value(key)), key


def test_a_moving_average_is_not_exported(recorded, tmp_path, capsys):
    """As torchtitan has none, an export would drop it; the line says how to move it."""
    assert imported(recorded("llama3") / "step-3", tmp_path / "start") == 0
    root = run_folder(tmp_path, tmp_path / "start", ema_decay=0.99)
    output = tmp_path / "outputs"
    assert main(["export-checkpoint", "--to", "torchtitan", "--run-dir", str(root), "--output", str(output)]) == 2
    assert "ema_decay: torchtitan has no moving average of the weights; move the average" in capsys.readouterr().err
    assert not output.exists()


def test_a_document_says_what_moved(recorded, tmp_path, capsys):
    """The step, the tokens, and how the optimizers differ."""
    folder = recorded("llama3")
    assert imported(folder / "step-3", tmp_path / "start", "--json", lr=0.02, beta2=0.9) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], document["tokens_seen"]) == (3, 192)
    assert document["differences"] == ["lr is 0.01 there, 0.02 here", "betas is (0.9, 0.95) there, (0.9, 0.9) here"]
    state = read_state(tmp_path / "start" / "step-00000003")
    assert (state.step, state.sequences) == (3, 0)


def test_hyperparameters_of_each_parameter_are_compared(recorded, tmp_path, capsys):
    """One matrix may decay in another way than the embeddings; without ``initial_lr``, ``lr`` counts."""
    theirs = DistributedFolder(recorded("llama3") / "step-3")
    tensors = {key: theirs.read_whole(key) for key in theirs.entries}
    prefix = "param_groups."
    optimizer = {
        key.removeprefix("optimizer."): theirs.value(key)
        for key in theirs.names_of_values()
        if key.startswith(f"optimizer.{prefix}") and not key.endswith(".initial_lr")
    }
    optimizer |= {key: 0.5 for key in optimizer if key.endswith(".lr")}
    optimizer[f"{prefix}layers.0.feed_forward.w1.weight.weight_decay"] = 0.7
    optimizer[f"{prefix}norm.weight.weight_decay"] = 0.1
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", tensors, {"train_state": {"step": 3}, "optimizer": optimizer})
    assert imported(tmp_path / "other", tmp_path / "start", "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"] == [
        "lr is 0.5 there, 0.01 here",
        "weight_decay of layers.0.feed_forward.w1.weight is 0.7 there, 0.1 here",
        "weight_decay of norm.weight is 0.1 there, 0 here",
    ]


def test_text_names_what_does_not_move(recorded, tmp_path, capsys):
    """Without ``--json``: what differs, what is not moved, and how to start."""
    folder = recorded("llama3-0.2")
    assert imported(folder / "step-3", tmp_path / "start", weight_decay=0.1) == 0
    printed = capsys.readouterr().out
    assert "(step 3, 192 tokens)" in printed
    assert "differs: weight_decay is 0.0 there, 0.1 here" in printed
    assert "not moved: the position in the data" in printed
    assert f"--init-from {tmp_path / 'start'} --init-state all" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 32}, "belongs to another model: tok_embeddings.weight is [32, 16], need [32, 32]"),
        ({"num_layers": 3}, "lacks weights of this model: layers.2."),
        ({"num_layers": 1}, "has weights that this model lacks: layers.1."),
        ({"optimizer": "muon"}, "optimizer muon: only the states of adamw move"),
        ({"ema_decay": 0.9}, "ema_decay: torchtitan has no moving average"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "a model with experts cannot move"),
        ({"model_type": "mistral", "sliding_window": 8}, "sliding_window 8: torchtitan's models attend to all"),
    ],
)
def test_what_does_not_fit_is_refused(options, message, recorded, tmp_path, capsys):
    """One line says why, and nothing is written."""
    folder = recorded("llama3")
    assert imported(folder / "step-3", tmp_path / "start", **options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "start").exists()


def test_a_model_that_a_release_was_not_tried_with_is_refused(recorded, tmp_path, capsys):
    """The names of Qwen3 in torchtitan 0.2 are known, its checkpoints were never compared."""
    folder = recorded("llama3-0.2")
    assert imported(folder / "step-3", tmp_path / "start", qk_norm=True) == 2
    assert "Qwen3 moves to and from torchtitan 0.3, not 0.2" in capsys.readouterr().err


def test_an_output_that_exists_is_kept(recorded, tmp_path, capsys):
    """A second import does not replace the first."""
    folder = recorded("llama3")
    assert imported(folder / "step-3", tmp_path / "start") == 0
    assert imported(folder / "step-3", tmp_path / "start") == 2
    assert "exists: name another folder, or delete it" in capsys.readouterr().err


def test_a_folder_without_an_index_is_refused(tmp_path, capsys):
    """A folder of checkpoints is not a checkpoint."""
    assert imported(tmp_path, tmp_path / "start") == 2
    assert "is not a checkpoint of torch.distributed.checkpoint: it has no .metadata" in capsys.readouterr().err


def test_weights_without_moments_are_refused(recorded, tmp_path, capsys):
    """A checkpoint of the last step may have weights only; the line says how to move those."""
    folder = recorded("llama3")
    theirs = DistributedFolder(folder / "step-3")
    weights = {key: theirs.read_whole(key) for key in theirs.entries if not key.startswith("optimizer.")}
    (tmp_path / "weights").mkdir()
    write(tmp_path / "weights", weights, {"train_state": {"step": 3}})
    assert imported(tmp_path / "weights", tmp_path / "start") == 2
    assert "lacks states of AdamW" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_refused(recorded, tmp_path, capsys):
    """No run can go on from them; nothing is left of the import."""
    folder = recorded("llama3")
    theirs = DistributedFolder(folder / "step-3")
    tensors = {key: theirs.read_whole(key) for key in theirs.entries}
    tensors["norm.weight"][0] = float("nan")
    (tmp_path / "broken").mkdir()
    write(tmp_path / "broken", tensors, {"train_state": {"step": 3}})
    assert imported(tmp_path / "broken", tmp_path / "start") == 2
    assert "model.model.norm.weight is not finite" in capsys.readouterr().err
    assert not list((tmp_path / "start").iterdir())


@pytest.mark.parametrize("trained", ["weights", "states"])
def test_a_head_that_was_trained_apart_is_refused(recorded, tmp_path, capsys, trained):
    """A model that ties its head would drop it."""
    theirs = DistributedFolder(recorded("qwen3") / "step-3")
    tensors = {key: theirs.read_whole(key) for key in theirs.entries}
    if trained == "weights":
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    else:
        tensors["optimizer.state.lm_head.weight.exp_avg"] = tensors["lm_head.weight"]
    (tmp_path / "apart").mkdir()
    write(tmp_path / "apart", tensors, {"train_state": {"step": 3}})
    assert imported(tmp_path / "apart", tmp_path / "start", **QWEN3) == 2
    assert "has a trained head of its own (lm_head.weight)" in capsys.readouterr().err


@pytest.mark.parametrize("step", [-1, "three"])
def test_a_step_that_is_no_number_is_refused(recorded, tmp_path, capsys, step):
    """One line, and nothing is written."""
    theirs = DistributedFolder(recorded("llama3") / "step-3")
    (tmp_path / "other").mkdir()
    write(
        tmp_path / "other",
        {key: theirs.read_whole(key) for key in theirs.entries},
        {"train_state": {"step": step}},
    )
    assert imported(tmp_path / "other", tmp_path / "start") == 2
    assert f"has train_state.step {step!r}, need a whole number of at least 0" in capsys.readouterr().err
    assert not (tmp_path / "start").exists()


@pytest.mark.parametrize("damage", ["transposed", "truncated"])
def test_an_unreadable_source_is_named(recorded, tmp_path, capsys, damage):
    """The line is about the checkpoint that is read, not about the folder that could not be written."""
    theirs = DistributedFolder(recorded("llama3") / "step-3")
    tensors = {key: theirs.read_whole(key) for key in theirs.entries}
    name = "layers.0.feed_forward.w1.weight"
    tensors[name] = tensors[name].t().contiguous().t()
    source = tmp_path / "other"
    if damage == "truncated":
        shutil.copytree(tmp_path / "llama3" / "step-3", source)
        (file,) = source.glob("*.distcp")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        source.mkdir()
        write(source, tensors, {"train_state": {"step": 3}})
    assert imported(source, tmp_path / "start") == 2
    error = capsys.readouterr().err
    assert f"checkpoint {source}" in error
    assert "cannot write" not in error
    assert ("w1.weight is not contiguous" if damage == "transposed" else "is damaged") in error


def write(folder, tensors, values):
    """Write tensors that are in memory."""
    streamed = {
        key: StreamedTensor(tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor)
        for key, tensor in tensors.items()
    }
    write_stream(folder, streamed, values)


def test_only_a_few_tensors_are_in_memory(tmp_path):
    """A tensor is read when it is written, and forgotten before the one after the next is read."""
    written, most = [], 0

    def read():
        nonlocal most
        most = max(most, sum(tensor() is not None for tensor in written))
        tensor = torch.zeros(1000)
        written.append(weakref.ref(tensor))
        return tensor

    write_stream(tmp_path, {f"tensor.{number}": StreamedTensor((1000,), torch.float32, read) for number in range(20)})
    assert len(written) == 20
    assert most <= 1


def test_the_newest_checkpoint_of_an_import_is_found(recorded, tmp_path):
    """The folder is one of checkpoints, as ``--init-from`` takes."""
    folder = recorded("llama3")
    assert imported(folder / "step-3", tmp_path / "start") == 0
    assert step_folder.newest(tmp_path / "start") == tmp_path / "start" / "step-00000003"


def test_a_checkpoint_of_many_ranks_is_imported_whole(recorded, tmp_path, run_ranks):
    """Tensors that four ranks of FSDP and tensor parallelism saved in blocks are the same after the import."""
    folder = recorded("llama3")
    (tmp_path / "ranks").mkdir()
    run_ranks(__file__, tmp_path / "ranks", str(folder / "step-3"), str(tmp_path / "blocks"), ranks=4)
    blocks = DistributedFolder(tmp_path / "blocks")
    assert max(len(entry.chunks) for entry in blocks.entries.values()) == 4
    assert imported(folder / "step-3", tmp_path / "start") == 0
    assert imported(tmp_path / "blocks", tmp_path / "of-blocks") == 0
    step = "step-00000003"
    one = TensorReader(tmp_path / "start" / step)
    many = TensorReader(tmp_path / "of-blocks" / step)
    assert all(torch.equal(one.read_whole(key), many.read_whole(key)) for key in one.entries)


def save_in_blocks(folder, source, target):
    """Save a checkpoint's tensors as ranks that each hold a block of every matrix."""
    ranks = Ranks.from_environment()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=ranks.rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2))
    whole = DistributedFolder(Path(source))
    tensors = {
        key: distribute_tensor(tensor, mesh, [Shard(0), Shard(1)], src_data_rank=None) if tensor.ndim > 1 else tensor
        for key, tensor in ((key, whole.read_whole(key)) for key in whole.entries)
    }
    save({**tensors, "train_state": {"step": 3}}, checkpoint_id=target)
    dist.destroy_process_group()


if __name__ == "__main__":
    save_in_blocks(*sys.argv[1:])
