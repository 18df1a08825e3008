"""Published configurations are read and written as transformers 4 and 5 understand them."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from podwright_testing.exported_models import OPTIONS_BY_MODEL, installed
from podwright_training.__main__ import main
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.commands.consolidate import consolidate
from podwright_training.config.architecture import ModelConfig, RopeScaling
from podwright_training.run_folder import RunFolder

TRANSFORMERS_4 = ("transformers==4.57.3", "tokenizers==0.22.1", "huggingface_hub==0.36.0")
SIZES = {
    "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16384, "rope_theta": 1e4,
}  # fmt: skip
MODELS = {
    "llama": {},
    "scaled": {"model_type": "llama", "rope_scaling": RopeScaling(factor=8.0)},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True, "num_local_experts": 4},
    "glm4_moe": {"num_local_experts": 4, "n_shared_experts": 1},
}
LOGITS_OF_TRANSFORMERS_4 = """import sys
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
folder, tokens, logits = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
assert model.dtype == torch.float32
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
assert model.config.eos_token_id == tokenizer.eos_token_id, (model.config.eos_token_id, tokenizer.eos_token_id)
with torch.no_grad():
    torch.save(model(input_ids=torch.load(tokens)).logits, logits)
"""


def model_of(name):
    """Return a model of our own."""
    return ModelConfig(**{**SIZES, "model_type": name, **MODELS[name]})


def published(folder, model, **changes):
    """Write the configuration that we export, with changes; a value of None removes its key."""
    ids = {"bos_token_id": None, "eos_token_id": 3, "pad_token_id": None}
    content = model.to_published(dtype="float32", special_tokens=ids) | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: content[key] for key in content if content[key] is not None}))
    (folder / "model.safetensors").touch()
    return HuggingFaceModel(folder)


@pytest.mark.parametrize("name", MODELS)
def test_an_export_fits_the_model_that_it_is_of(tmp_path, name):
    """No key of a class of transformers differs from ours, also none that we do not set."""
    model = model_of(name)
    assert published(tmp_path / "hf", model).problems(model) == []


def test_a_head_without_a_size_has_the_usual_one(tmp_path):
    """Mixtral's published configuration has no head_dim: it is hidden_size / num_attention_heads."""
    model = model_of("mixtral")
    assert published(tmp_path / "hf", model, head_dim=None).problems(model) == []
    (problem,) = published(tmp_path / "hf", model, head_dim=None, num_attention_heads=4).problems(model)[-1:]
    assert "head_dim is 2 there, 4 here" in problem or "num_attention_heads is 4 there, 2 here" in problem


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_windows_that_only_a_published_model_has_are_compared(tmp_path, name):
    """Qwen's models can have windows over some layers, which ours have not; their keys are harmless when it is off."""
    model = model_of(name)
    window = {"sliding_window": 4, "max_window_layers": 1}
    problems = published(tmp_path / "hf", model, use_sliding_window=True, **window).problems(model)
    assert any("use_sliding_window is True there, False here" in problem for problem in problems)
    assert published(tmp_path / "hf", model, use_sliding_window=False, **window).problems(model) == []


def test_quantized_weights_are_refused(tmp_path):
    """Their tensors are no weights that training could go on from."""
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (problem,) = published(tmp_path / "hf", model_of("llama"), quantization_config=quantization).problems(
        model_of("llama")
    )
    assert "its weights are quantized" in problem


@pytest.mark.parametrize("name", MODELS)
def test_a_configuration_has_both_spellings(name):
    """Transformers 4 would silently take its default for a key that it does not know, and Llama 2's special tokens."""
    model = model_of(name)
    ids = {"bos_token_id": None, "eos_token_id": 7, "pad_token_id": None}
    content = model.to_published(dtype="bfloat16", special_tokens=ids)
    assert content["rope_parameters"]["rope_theta"] == content["rope_theta"] == model.rope_theta
    assert (content["dtype"], content["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert content["architectures"][0].lower() == f"{content['model_type'].replace('_', '')}forcausallm"
    assert ids.items() <= content.items()
    older = {"qwen3_moe": "num_experts", "mixtral": "num_local_experts", "glm4_moe": "n_routed_experts"}
    assert name not in older or content[older[name]] == model.num_local_experts
    if model.rope_scaling:
        keys = ("rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        assert {key: content["rope_scaling"][key] for key in keys} == {
            key: content["rope_parameters"][key] for key in keys
        }
    else:
        assert content["rope_scaling"] is None
    assert name != "glm4_moe" or content["partial_rotary_factor"] == 1.0


READ_BY_SERVERS = {  # Keys that vLLM 0.33 and llama.cpp's converter read, and have other defaults for.
    "llama": {"attention_bias": False, "mlp_bias": False, "head_dim": 4},
    "scaled": {"original_max_position_embeddings": 8192},
    "mistral": {"sliding_window": 8},
    "mixtral": {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {"head_dim": 4, "attention_bias": False},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 8, "norm_topk_prob": True, "decoder_sparse_step": 1},
    "glm4_moe": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 8,
        "first_k_dense_replace": 0,
        "num_nextn_predict_layers": 0,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "use_qk_norm": False,
        "partial_rotary_factor": 1.0,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_servers_find_the_keys_that_they_read(name):
    """Neither vLLM nor llama.cpp's converter takes a default of its own."""
    content = model_of(name).to_published(dtype="float32", special_tokens={})
    keys = READ_BY_SERVERS[name]
    assert {key: content.get(key, "missing") for key in keys} == keys


@pytest.mark.parametrize("context", [None, 4096])
def test_the_context_before_scaling_is_at_the_top_too(tmp_path, context):
    """Converters of llama.cpp read it there, and take 8192 if it is missing; transformers reads the same rotation."""
    scaling = RopeScaling(factor=8.0, original_max_position_embeddings=context) if context else None
    model = ModelConfig(**{**SIZES, "model_type": "llama", "rope_scaling": scaling})
    assert published(tmp_path / "hf", model).problems(model) == []
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content.get("original_max_position_embeddings") == context


@pytest.fixture(scope="module")
def transformers_4(tmp_path_factory):
    """Return a folder with transformers 4, from the registry or from $PODWRIGHT_TRANSFORMERS_4."""
    if folder := os.environ.get("PODWRIGHT_TRANSFORMERS_4"):
        return folder
    return installed(tmp_path_factory.mktemp("transformers4"), *TRANSFORMERS_4)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS_BY_MODEL)
def test_transformers_4_computes_the_logits_of_transformers_5(tiny_flags, tmp_path, transformers_4, name):
    """An export gives the same logits to 1e-5 in both releases, and its tokenizer loads in both."""
    folder = RunFolder(tmp_path / "run")
    assert main(["train", *tiny_flags(folder.root, ranks=1, max_steps=1, **OPTIONS_BY_MODEL[name])]) == 0
    consolidate(folder)
    tokens = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(0))
    torch.save(tokens, tmp_path / "tokens")
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder.hf)(input_ids=tokens).logits
    paths = [str(item) for item in (folder.hf, tmp_path / "tokens", tmp_path / "logits")]
    environment = {**os.environ, "PYTHONPATH": str(transformers_4)}
    command = [sys.executable, "-c", LOGITS_OF_TRANSFORMERS_4, *paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "logits"), expected, atol=1e-5, rtol=0)
