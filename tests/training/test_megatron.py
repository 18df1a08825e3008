"""Checkpoints move from and to Megatron-Core: the losses after the move are those of Megatron-Core.

Megatron-Core's own code wrote the checkpoints in ``megatron/`` and computed what follows them
(``megatron/train_megatron.py``).
"""

import argparse
import errno
import json
import os
import shutil
import subprocess
import sys
import tarfile
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_training.__main__ import main
from podwright_training.batch import Batch
from podwright_training.checkpoint import trainer_state
from podwright_training.checkpoint.collective_io import DamagedCheckpointError
from podwright_training.checkpoint.distributed_folder import DistributedFolder
from podwright_training.checkpoint.inert_pickle import StandIn, load_inert
from podwright_training.checkpoint.megatron_common import COMMON_KEY
from podwright_training.checkpoint.megatron_layout import MegatronLayout, unflatten
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.checkpoint.tensor_stream import StackedTensor, StreamedTensor, write_stream
from podwright_training.config.train_config import TrainConfig
from podwright_training.device import process_group
from podwright_training.loop import initial_weights
from podwright_training.optim import Optimizers
from podwright_training.parallel import ParallelModel
from podwright_training.ranks import Ranks
from podwright_training.spelling import as_flag

RECORDED = Path(__file__).parent / "megatron"
CPU = torch.device("cpu")
STEP, ITERATION = "step-00000003", "iter_0000003"
OPTIONS = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 2,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "max_context_width": 16,
    "rope_theta": 10000.0,
    "max_steps": 100,
    "global_batch_size": 4,
    "lr": 0.01,
    "min_lr": 0.0,
    "beta2": 0.95,
    "weight_decay": 0.1,
    "bf16": False,
    "activation_checkpointing": False,
}
QWEN3 = {"qk_norm": True, "head_dim": 8, "tie_word_embeddings": True}
MAIN_WEIGHTS = {"bf16": "fp32_param", "distributed": "param"}  # name of a recording: fp32 weights of a model in bf16
MOMENTS = "exp_avg", "exp_avg_sq"
RECORDINGS = {"llama": {}, "qwen3": QWEN3, "layers": {"vocab_size": 40}}  # name: options that differ


@pytest.fixture
def recorded(tmp_path):
    """A folder with a checkpoint that Megatron-Core wrote, and what it computed from there."""

    def recorded(name):
        with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    return recorded


def imported(source, output, *more, **options):
    """Import a checkpoint with the options of its run; return the exit status."""
    flags = [as_flag(name, value) for name, value in {**OPTIONS, **options}.items()]
    command = ["import-checkpoint", "--from", "megatron", "--source", str(source), "--output", str(output)]
    return main([*command, *flags, *more])


def exported(tmp_path, checkpoints, **options):
    """Export the newest checkpoint of a run that has these; return the folder."""
    root = tmp_path / "run"
    root.mkdir()
    shutil.copytree(checkpoints, root / "checkpoints")
    (root / "config.yaml").write_text(TrainConfig(**{**OPTIONS, **options, "run_dir": str(root)}).to_yaml())
    output = tmp_path / "outputs"
    assert main(["export-checkpoint", "--to", "megatron", "--run-dir", str(root), "--output", str(output)]) == 0
    return output / ITERATION


def batch(step):
    """The tokens of a step, as in ``train_megatron.py``."""
    sequences = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(step))
    return Batch(sequences[:, :-1], sequences[:, 1:])


def write(folder, tensors, values):
    """Write tensors that are in memory, and values, as Megatron-Core does."""
    folder.mkdir()
    streamed = {
        key: StreamedTensor(tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor)
        for key, tensor in tensors.items()
    }
    write_stream(folder, streamed, values, flatten=False)


def contents(folder):
    """The tensors and the common values of a checkpoint."""
    checkpoint = DistributedFolder(folder)
    return {key: checkpoint.read_whole(key) for key in checkpoint.entries}, load_inert(checkpoint.content(COMMON_KEY))


@pytest.mark.parametrize("name", RECORDINGS)
def test_losses_after_the_import_are_those_of_megatron(name, recorded, tmp_path):
    """The losses of the next steps, by AdamW with the imported moments."""
    folder, options = recorded(name), RECORDINGS[name]
    assert imported(folder / ITERATION, tmp_path / "start", **options) == 0
    expected = json.loads((folder / "continued.json").read_text())
    config = TrainConfig(**{**OPTIONS, **options, "init_from": str(tmp_path / "start"), "init_state": "all"})
    assert not list(initial_weights.problems(tmp_path / "start", config))
    with process_group(Ranks(), CPU):
        model = ParallelModel(config, Ranks(), CPU, initialize=False)
        optimizers = Optimizers(model.named_parameters(), config)
        optimizers.allocate()
        state = initial_weights.load(tmp_path / "start", config, model=model, optimizers=optimizers)
        assert state.step == expected["step"]
        losses = []
        for step in range(state.step + 1, state.step + 1 + len(expected["losses"])):
            losses.append(model.forward_backward([batch(step)], tokens=64).item())
            optimizers.step(lr=config.lr)
    assert losses == pytest.approx(expected["losses"], abs=2e-5)


@pytest.mark.parametrize(
    ("name", "tolerance"), [*((name, 1e-5) for name in RECORDINGS), *((name, 0.02) for name in MAIN_WEIGHTS)]
)
def test_logits_after_the_import_are_those_of_megatron(name, tolerance, recorded, tmp_path, model_of):
    """Heads, gates and rotation are those that this model needs; Megatron's model in bf16 rounds its own."""
    folder, options = recorded(name), RECORDINGS.get(name, {})
    assert imported(folder / ITERATION, tmp_path / "start", **options) == 0
    expected = json.loads((folder / "continued.json").read_text())["logits"]
    with torch.no_grad():
        logits = model_of(tmp_path / "start" / STEP)(batch(0).tokens_BT[:1, :4])[..., :32]
    assert logits.flatten().tolist() == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("name", ["llama", "qwen3", *MAIN_WEIGHTS])
def test_an_export_is_what_megatron_wrote(name, recorded, tmp_path):
    """Import and export give each tensor bit by bit; weights in bf16 are exported in fp32."""
    folder, options = recorded(name), RECORDINGS.get(name, {})
    assert imported(folder / ITERATION, tmp_path / "start", **options) == 0
    ours = DistributedFolder(exported(tmp_path, tmp_path / "start", **options))
    theirs = DistributedFolder(folder / ITERATION)
    extra = ours.entries.keys() - theirs.entries.keys()
    assert all(key.startswith(("optimizer.state.fp32_param.", "optimizer.state.param.")) for key in extra)
    for key, entry in theirs.entries.items():
        assert torch.equal(ours.read_whole(key).to(entry.properties.dtype), theirs.read_whole(key)), key
    assert theirs.names_of_values() - ours.names_of_values() == {COMMON_KEY}


@pytest.mark.parametrize(("name", "main_weights"), MAIN_WEIGHTS.items())
def test_each_state_of_adam_moves(name, main_weights, recorded, tmp_path):
    """Element by element: the rows of a head, of gate and of up, the steps, and fp32 weights of a model in bf16."""
    folder = recorded(name)
    assert imported(folder / ITERATION, tmp_path / "start") == 0
    ours, (theirs, _) = TensorReader(tmp_path / "start" / STEP), contents(folder / ITERATION)
    for part, state, suffix in (("model", main_weights, ""), *(("optimizer", key, f".{key}") for key in MOMENTS)):
        fused = theirs[f"optimizer.state.{state}.decoder.layers.self_attention.linear_qkv.weight"]
        gates = theirs[f"optimizer.state.{state}.decoder.layers.mlp.linear_fc1.weight"]
        for layer in range(2):
            prefix = f"{part}.model.layers.{layer}"
            query = ours.read_whole(f"{prefix}.self_attn.q_proj.weight{suffix}")
            key = ours.read_whole(f"{prefix}.self_attn.k_proj.weight{suffix}")
            value = ours.read_whole(f"{prefix}.self_attn.v_proj.weight{suffix}")
            rows = [*query[:8], *key[:4], *value[:4], *query[8:], *key[4:], *value[4:]]  # 2 heads per group, 4 wide
            assert torch.equal(torch.stack(rows), fused[layer])
            gate = ours.read_whole(f"{prefix}.mlp.gate_proj.weight{suffix}")
            up = ours.read_whole(f"{prefix}.mlp.up_proj.weight{suffix}")
            assert torch.equal(torch.cat([gate, up]), gates[layer])
    assert all(ours.read_whole(key).item() == 3 for key in ours.entries if key.endswith(".step"))


@pytest.mark.parametrize("name", [*RECORDINGS, *MAIN_WEIGHTS])
def test_megatron_continues_an_export(name, recorded, tmp_path):
    """Its own ``dist_checkpointing.load`` reads it; logits and losses are those of its own checkpoint."""
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed; put its package, einops and psutil on PYTHONPATH")
    folder, options = recorded(name), RECORDINGS.get(name, {})
    assert imported(folder / ITERATION, tmp_path / "start", **options) == 0
    checkpoint = exported(tmp_path, tmp_path / "start", **options)
    command = [sys.executable, str(RECORDED / "train_megatron.py"), "continue", name, str(checkpoint)]
    printed = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True).stdout
    expected = json.loads((folder / "continued.json").read_text())
    continued = json.loads(printed.splitlines()[-1])
    assert continued["logits"] == pytest.approx(expected["logits"], abs=1e-5)
    assert continued["losses"] == pytest.approx(expected["losses"], abs=2e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
def test_a_layout_gives_each_parameter_back(groups, heads_of_group, width, layers, stacked, split):
    """Fused as Megatron's own attention and SwiGLU divide them, over heads, groups and layers."""
    model = TrainConfig(
        vocab_size=5,
        hidden_size=2,
        intermediate_size=3,
        num_layers=layers,
        num_heads=groups * heads_of_group,
        num_key_value_heads=groups,
        head_dim=2 * width,
    ).model
    layout = MegatronLayout(model, stacks_layers=stacked, splits_gate=split)
    rows = {"q_proj": groups * heads_of_group * 2 * width, "k_proj": groups * 2 * width, "v_proj": groups * 2 * width}
    places = set()
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        names = [f"{prefix}.self_attn.{projection}.weight" for projection in rows]
        tensors = [torch.rand(count, 2) for count in rows.values()]
        fused = layout.fuse(tensors)
        assert tuple(fused.shape) == layout.shape(names[0], tuple(tensors[0].shape))
        by_group = fused.view(groups, (heads_of_group + 2) * 2 * width, 2)  # as in Megatron's get_query_key_value
        query, key, value = by_group.split([heads_of_group * 2 * width, 2 * width, 2 * width], dim=1)
        assert torch.equal(query.reshape(-1, 2), tensors[0])
        assert torch.equal(key.reshape(-1, 2), tensors[1])
        assert torch.equal(value.reshape(-1, 2), tensors[2])
        for name, tensor in zip(names, tensors, strict=True):
            assert torch.equal(layout.split(name, fused), tensor)
        assert len({layout.place(name) for name in names}) == 1
        gates = [f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"]
        tensors = [torch.rand(3, 2), torch.rand(3, 2)]
        assert len({layout.place(name) for name in gates}) == (2 if split else 1)
        for name, tensor in zip(gates, tensors, strict=True):
            assert torch.equal(layout.split(name, tensor if split else layout.fuse(tensors)), tensor)
        places |= {layout.place(names[0]), layout.place(gates[0])}
    assert len(places) == 2 * layers


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_blocks_of_a_flattened_tensor_are_in_their_places(rows, columns, height, width):
    """Each rank of tensor parallelism saved its block in a row."""
    tensor = torch.arange(rows * height * columns * width).view(rows * height, columns * width)
    flat = torch.empty(rows, columns, height * width, dtype=tensor.dtype)
    for row in range(rows):
        for column in range(columns):
            block = tensor[row * height : (row + 1) * height, column * width : (column + 1) * width]
            flat[row, column] = block.flatten()
    assert torch.equal(unflatten(flat, tuple(tensor.shape)), tensor)


@pytest.mark.parametrize("blocks", [1, 2])
def test_states_that_were_flattened_are_the_same(blocks, recorded, tmp_path):
    """As in the distributed optimizer's ``fully_sharded_model_space``, also of two ranks of tensor parallelism."""
    tensors, common = contents(recorded("llama") / ITERATION)
    assert imported(tmp_path / "llama" / ITERATION, tmp_path / "start") == 0
    for key, tensor in tensors.items():
        if not key.startswith("optimizer.") or key.endswith("final_layernorm.weight"):
            continue
        stacked = ".layers." in key
        divided = blocks if tensor.ndim - stacked > 1 else 1  # norms are on each rank of tensor parallelism
        grid = [*tensor.shape[:1], divided] if stacked else [divided]
        tensors[key] = tensor.reshape(*grid, *(1 for _ in tensor.shape[len(grid) :]), -1)
    write(tmp_path / "flat", tensors, {COMMON_KEY: [{**common[0], "args": None}]})
    assert imported(tmp_path / "flat", tmp_path / "of-flat") == 0
    one, other = TensorReader(tmp_path / "start" / STEP), TensorReader(tmp_path / "of-flat" / STEP)
    assert all(torch.equal(one.read_whole(key), other.read_whole(key)) for key in one.entries)


def test_other_spellings_of_norms_are_read(recorded, tmp_path):
    """Norms may have the names of their own modules."""
    tensors, common = contents(recorded("llama") / ITERATION)
    spelled = {
        key.replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.").replace(
            "mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."
        ): tensor
        for key, tensor in tensors.items()
    }
    assert spelled.keys() != tensors.keys()
    write(tmp_path / "spelled", spelled, {COMMON_KEY: [{**common[0], "args": None}]})
    assert imported(tmp_path / "spelled", tmp_path / "start") == 0


def test_common_pt_is_read(recorded, tmp_path, capsys):
    """Older releases have the values in a file of their own; an export writes it, as all releases read it."""
    folder = recorded("llama")
    assert imported(folder / ITERATION, tmp_path / "start") == 0
    checkpoint = exported(tmp_path, tmp_path / "start")
    assert (checkpoint.parent / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert json.loads((checkpoint / "metadata.json").read_text())["sharded_backend"] == "torch_dist"
    arguments = load_inert((checkpoint / "common.pt").read_bytes())["args"]
    assert arguments.norm_epsilon == arguments.layernorm_epsilon == 1e-5  # of releases before and since 0.16
    assert not arguments.apply_layernorm_1p
    assert not arguments.layernorm_zero_centered_gamma
    capsys.readouterr()
    assert imported(checkpoint, tmp_path / "again", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], document["tokens_seen"], document["differences"]) == (3, 192, [])
    assert imported(checkpoint.parent, tmp_path / "newest") == 2
    assert f"such as the newest, {checkpoint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "example"),
    [(b"release\n", ", such as the newest, {}/release"), (b"", ""), (b"\xff", ""), (b"\x1b[31m", "")],
)
def test_a_folder_of_checkpoints_is_named(content, example, tmp_path, capsys):
    """The line names the newest, if the tracker does."""
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(content)
    assert imported(tmp_path, tmp_path / "start") == 2
    error = capsys.readouterr().err
    assert error == f"error: {tmp_path} is a folder of checkpoints: name one of them{example.format(tmp_path)}\n"


def test_an_export_says_which_checkpoint_megatron_loads(recorded, tmp_path, capsys):
    """The tracker names the first; flags that Megatron-LM does not take from the checkpoint are printed."""
    assert imported(recorded("qwen3") / ITERATION, tmp_path / "start", **QWEN3) == 0
    output = tmp_path / "outputs"
    output.mkdir()
    (output / "latest_checkpointed_iteration.txt").write_text("1")
    exported(tmp_path, tmp_path / "start", **QWEN3)
    printed = capsys.readouterr().out
    assert f"differs: latest_checkpointed_iteration.txt names iter_0000001, not {ITERATION}\n" in printed
    assert "--use-checkpoint-args does not restore --norm-epsilon 1e-05 --qk-layernorm\n" in printed


def test_an_import_records_the_beginning_of_documents(recorded, tmp_path):
    """An export of it must begin texts with BOS."""
    source = recorded("llama") / ITERATION
    assert imported(source, tmp_path / "start", add_bos=True) == 0
    assert trainer_state.adds_bos(tmp_path / "start" / STEP)
    assert imported(source, tmp_path / "without") == 0
    assert not trainer_state.adds_bos(tmp_path / "without" / STEP)


def test_a_name_of_a_tensor_stays_on_its_line(recorded, tmp_path, capsys):
    """A name could otherwise look like a line of this program."""
    tensors, common = contents(recorded("llama") / ITERATION)
    write(tmp_path / "named", {**tensors, "\x1b[31mone\ntwo": torch.zeros(1)}, {COMMON_KEY: common})
    assert imported(tmp_path / "named", tmp_path / "start") == 2
    assert r"has weights that this model lacks: \x1b[31mone\ntwo" in capsys.readouterr().err


def test_weights_of_whole_numbers_are_refused(recorded, tmp_path, capsys):
    """No optimizer trains them."""
    tensors, common = contents(recorded("llama") / ITERATION)
    tensors["embedding.word_embeddings.weight"] = tensors["embedding.word_embeddings.weight"].to(torch.int32)
    write(tmp_path / "whole", tensors, {COMMON_KEY: common})
    assert imported(tmp_path / "whole", tmp_path / "start") == 2
    assert "model.model.embed_tokens.weight is torch.int32" in capsys.readouterr().err


def test_an_unreadable_source_is_named(recorded, tmp_path, capsys, monkeypatch):
    """The folder of the output is not at fault."""
    source = recorded("llama") / ITERATION

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert imported(source, tmp_path / "start") == 2
    assert capsys.readouterr().err == f"error: --source: cannot read {source}: Permission denied\n"


@pytest.mark.parametrize("shape", [(), (32, 16, 1), (3, 16)])
def test_states_of_another_shape_are_refused(shape, recorded, tmp_path, capsys):
    """Those of all layers have an axis for them; a grid of blocks divides the tensor."""
    tensors, common = contents(recorded("llama") / ITERATION)
    key = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight"
    tensors[key] = torch.zeros(shape)
    write(tmp_path / "odd", tensors, {COMMON_KEY: common})
    assert imported(tmp_path / "odd", tmp_path / "start") == 2
    assert f"{key} is {list(shape)}, which does not fit" in capsys.readouterr().err


def test_a_document_says_what_moved(recorded, tmp_path, capsys):
    """The step, the tokens, rows that padded the vocabulary, and how the optimizers differ."""
    folder = recorded("layers")
    assert imported(folder / ITERATION, tmp_path / "start", "--json", lr=0.02, beta2=0.9) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], document["tokens_seen"]) == (3, 192)
    assert document["differences"] == [
        "lr is 0.01 there, 0.02 here",
        "betas is (0.9, 0.95) there, (0.9, 0.9) here",
        "vocabulary is padded to 40 there, 32 here: rows 32 to 39 were left out",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 32}, "embedding.word_embeddings.weight is [32, 16], need [32, 32]"),
        ({"intermediate_size": 32}, "mlp.linear_fc1.weight is [48, 16] in each layer, need [64, 16]"),
        ({"num_layers": 3}, "belongs to another model: num_layers is 2 there, 3 here"),
        ({"rope_theta": 5e5}, "belongs to another model: rotary_base is 10000 there, 500000.0 here"),
        ({"qk_norm": True}, "lacks weights of this model: decoder.layers.self_attention.k_layernorm.weight"),
        ({"tie_word_embeddings": True}, "has weights that this model lacks: output_layer.weight"),
        ({"vocab_size": 40}, "embedding.word_embeddings.weight is [32, 16], need [40, 16]"),
        ({"optimizer": "muon"}, "optimizer muon: only the states of adamw move from Megatron"),
        ({"ema_decay": 0.9}, "ema_decay: Megatron has no moving average"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "a model with experts cannot move"),
        ({"model_type": "mistral", "sliding_window": 8}, "sliding_window 8: only models that attend to all"),
    ],
)
def test_what_does_not_fit_is_refused(options, message, recorded, tmp_path, capsys):
    """One line says why, and nothing is written."""
    assert imported(recorded("llama") / ITERATION, tmp_path / "start", **options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "start").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_experts": 8}, "num_experts is 8 there, None here"),
        ({"normalization": "LayerNorm"}, "normalization is LayerNorm there, RMSNorm here"),
        ({"num_attention_heads": 2, "group_query_attention": False}, "num_attention_heads is 2 there, 4 here"),
        ({"use_rope_scaling": True}, "use_rope_scaling is True there, False here"),
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p is True there, False here"),
        ({"layernorm_epsilon": 1e-6}, "layernorm_epsilon is 1e-06 there, 1e-05 here"),
        ({"layernorm_zero_centered_gamma": True}, "layernorm_zero_centered_gamma is True there, False here"),
        ({"window_size": (4, 0)}, "window_size is (4, 0) there, None here"),
        ({"no_rope_freq": [0, 1]}, "no_rope_freq is (0, 1) there, None here"),
        ({"rotary_seq_len_interpolation_factor": 8}, "rotary_seq_len_interpolation_factor is 8 there, None here"),
        ({"apply_residual_connection_post_layernorm": True}, "_post_layernorm is True there, False here"),
        ({"softmax_scale": 0.1}, "softmax_scale is 0.1 there, None here"),
        ({"qk_l2_norm": True}, "qk_l2_norm is True there, False here"),
        ({"use_mup": True}, "use_mup is True there, False here"),
        ({"mup_embedding_mult": 10.0}, "mup_embedding_mult is 10.0 there, 1.0 here"),
        ({"glu_linear_offset": 1.0}, "glu_linear_offset is 1.0 there, 0.0 here"),
        ({"activation_func_clamp_value": 7.0}, "activation_func_clamp_value is 7.0 there, None here"),
        ({"norm_epsilon": torch.tensor(0.5)}, "norm_epsilon is 0.5 there, 1e-05 here"),
        ({"norm_epsilon": np.float64(1e-6)}, "norm_epsilon is an object (StandIn) there, 1e-05 here"),
        ({"num_layers": torch.ones(3)}, "num_layers is an object (Tensor) there, 2 here"),
        ({"num_layers": 10**500}, "num_layers is a number of more than 18 digits there, 2 here"),
        ({"softmax_type": "\x1b[2J" + 99 * "x"}, f"softmax_type is \\x1b[2J{53 * 'x'}… there, vanilla here"),
    ],
)
def test_arguments_of_another_model_are_refused(arguments, message, recorded, tmp_path, capsys):
    """Shapes do not show them."""
    source = recorded("llama") / ITERATION
    torch.save({"iteration": 3, "args": argparse.Namespace(**arguments)}, source / "common.pt")
    assert imported(source, tmp_path / "start") == 2
    assert message in capsys.readouterr().err


def neutral_arguments():
    """The arguments of Megatron-LM whose values change nothing."""
    return {"window_size": [-1, -1], "no_rope_freq": None, "softmax_scale": 0.5, "use_mup": False, "num_layers": 2}


def test_arguments_that_change_nothing_are_accepted(recorded, tmp_path, capsys):
    """Nothing differs, and the model was compared."""
    source = recorded("llama") / ITERATION
    torch.save({"iteration": 3, "args": argparse.Namespace(**neutral_arguments())}, source / "common.pt")
    assert imported(source, tmp_path / "start", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["differences"], document.get("not_compared")) == ([], None)


@pytest.mark.parametrize("kind", [types.SimpleNamespace, dict])
def test_arguments_of_each_kind_are_compared(kind, recorded, tmp_path, capsys):
    """Megatron-LM saves another type of namespace when it reads them from YAML."""
    source = recorded("llama") / ITERATION
    torch.save({"iteration": 3, "args": kind(rotary_base=500000)}, source / "common.pt")
    assert imported(source, tmp_path / "start") == 2
    assert "rotary_base is 500000 there, 10000.0 here" in capsys.readouterr().err


def test_a_checkpoint_without_arguments_says_so(recorded, tmp_path, capsys):
    """The user has to compare the models."""
    source = recorded("llama") / ITERATION
    torch.save({"iteration": 3}, source / "common.pt")
    assert imported(source, tmp_path / "start") == 0
    assert "\nnot compared: the checkpoint has no arguments\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "multiple"),
    [({}, None), ({"make_vocab_size_divisible_by": 4}, 4), ({"tensor_model_parallel_size": 2}, None)],
)
def test_rows_that_padding_does_not_explain_are_refused(arguments, multiple, recorded, tmp_path, capsys):
    """They are tokens of the checkpoint's tokenizer."""
    source = recorded("layers") / ITERATION  # padded from 32 to 40
    torch.save({"iteration": 3, "args": argparse.Namespace(**arguments)}, source / "common.pt")
    assert imported(source, tmp_path / "start") == (2 if multiple else 0)
    error = capsys.readouterr().err
    assert multiple is None or (
        "has 40 rows, vocab_size is 32, and padding to a multiple of 4 adds fewer: set --vocab-size" in error
    )


def test_a_checkpoint_that_lacks_one_weight_in_fp32_is_refused(recorded, tmp_path, capsys):
    """Otherwise all weights would silently be those in bf16."""
    tensors, common = contents(recorded("bf16") / ITERATION)
    lacking = "optimizer.state.fp32_param.output_layer.weight"
    del tensors[lacking]
    write(tmp_path / "lacking", tensors, {COMMON_KEY: common})
    assert imported(tmp_path / "lacking", tmp_path / "start") == 2
    assert f"is incomplete: it has some weights in fp32, and lacks {lacking}" in capsys.readouterr().err


def test_hyperparameters_of_any_type_are_printed(recorded, tmp_path, capsys):
    """A terminal obeys none of them, and each is on one line."""
    source = recorded("llama") / ITERATION
    group = {"eps": "\x1b[31mX\nY", "max_lr": torch.ones(3), "wd_mult": torch.ones(2), "weight_decay": 10**500}
    torch.save({"iteration": 3, "optimizer": {"param_groups": [group]}}, source / "common.pt")
    assert imported(source, tmp_path / "start") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("differs")] == [
        "differs: lr is an object (Tensor) there, 0.01 here",
        r"differs: eps is \x1b[31mX\nY there, 1e-08 here",
        "differs: weight_decay is a number of more than 18 digits there, 0.1 here",
    ]


@pytest.mark.parametrize(
    ("common", "message"),
    [
        ({}, "has iteration None, need a whole number of at least 0"),
        ({"iteration": -1}, "has iteration -1, need a whole number of at least 0"),
    ],
)
def test_a_step_that_is_no_number_is_refused(common, message, recorded, tmp_path, capsys):
    """One line, and nothing is written."""
    source = recorded("llama") / ITERATION
    torch.save(common, source / "common.pt")
    assert imported(source, tmp_path / "start") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "start").exists()


def test_a_format_that_depends_on_ranks_is_refused(recorded, tmp_path, capsys):
    """The line names the format, and the flag with which Megatron-LM writes another."""
    assert imported(recorded("buffers") / ITERATION, tmp_path / "start") == 2
    error = capsys.readouterr().err
    assert "has its optimizer in the format dp_reshardable, which depends on Megatron's ranks" in error
    assert "--dist-ckpt-optim-fully-reshardable" in error


def test_weights_without_moments_are_refused(recorded, tmp_path, capsys):
    """A checkpoint may have weights only; the line says how to move those."""
    tensors, common = contents(recorded("llama") / ITERATION)
    weights = {key: tensor for key, tensor in tensors.items() if not key.startswith("optimizer.")}
    write(tmp_path / "weights", weights, {COMMON_KEY: [{**common[0], "args": None}]})
    assert imported(tmp_path / "weights", tmp_path / "start") == 2
    assert "lacks states of Adam" in capsys.readouterr().err


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path, capsys):
    """It has neither file nor values of Megatron-Core."""
    write(tmp_path / "other", {"weight": torch.zeros(2)}, {})
    assert imported(tmp_path / "other", tmp_path / "start") == 2
    assert "is not a checkpoint of Megatron-Core: it has neither common.pt nor common_state" in capsys.readouterr().err


class Crafted:
    """Unpickled, it runs a command."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def test_values_run_no_code(tmp_path):
    """Functions and classes of a file become stand-ins, which ignore their arguments."""
    mark = tmp_path / "executed"
    values = argparse.Namespace(crafted=Crafted(subprocess.getoutput, f"touch {mark}"), place=Path("/"), number=3)
    torch.save(values, tmp_path / "common.pt")
    read = load_inert((tmp_path / "common.pt").read_bytes())
    assert (read.number, type(read.crafted), type(read.place)) == (3, StandIn, StandIn)
    assert not mark.exists()


def test_damaged_values_are_named(recorded, tmp_path, capsys):
    """So are those that name a module that nothing may be read from."""
    mark = tmp_path / "executed"
    source = recorded("llama") / ITERATION
    for content in (b"no pickle", None):
        if content is None:
            torch.save({"iteration": Crafted(os.system, f"touch {mark}")}, source / "common.pt")
        else:
            (source / "common.pt").write_bytes(content)
        assert imported(source, tmp_path / "start") == 2
        assert f"checkpoint {source} is damaged: common.pt" in capsys.readouterr().err
    assert not mark.exists()
    assert issubclass(DamagedCheckpointError, Exception)


def test_parts_of_a_stack_are_read_one_by_one(tmp_path):
    """A tensor of all layers is written without being in memory as a whole."""
    parts = [lambda number=number: torch.full((3, 2), float(number)) for number in range(4)]
    write_stream(tmp_path, {"stack": StackedTensor((4, 3, 2), torch.float32, parts)})
    folder = DistributedFolder(tmp_path)
    assert len(folder.entries["stack"].chunks) == 4
    assert torch.equal(folder.read_whole("stack")[:, 0, 0], torch.arange(4.0))
