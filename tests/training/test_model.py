"""Our Llama is the published one: equal to transformers', and rightly initialised."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers import LlamaForCausalLM as HuggingFaceLlama

from podwright_training.config import PRESETS, ModelConfig, RopeScaling, load_file
from podwright_training.model import LlamaForCausalLM

LLAMA_2 = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
}
VARIANTS = {
    "llama 2": {},
    "llama 3.1": {
        "num_key_value_heads": 2,
        "rope_theta": 5e5,
        "rope_scaling": RopeScaling(factor=8.0, original_max_position_embeddings=32),
    },
    "llama 3.2": {
        "num_key_value_heads": 1,
        "rope_scaling": RopeScaling(factor=32.0, original_max_position_embeddings=16),
        "tie_word_embeddings": True,
    },
}
PUBLISHED_PARAMETERS = {"llama2_7b": 6_738_415_616, "llama3_1_8b": 8_030_261_248, "llama3_2_1b": 1_235_814_400}


def build(config):
    """The model as the trainer builds it: meta device, memory, initial values."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(math.nan)  # what to_empty leaves may be anything
    model.init_weights(seed=1)
    return model


@pytest.fixture(params=VARIANTS)
def pair(request):
    """Our model and transformers' with the same weights, its configuration read from ours."""
    config = ModelConfig(**{**LLAMA_2, **VARIANTS[request.param]})
    ours, theirs = build(config), HuggingFaceLlama(LlamaConfig(**config.to_hf()))
    absent = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert absent.missing_keys == (["lm_head.weight"] if config.tie_word_embeddings else [])
    assert absent.unexpected_keys == []
    theirs.tie_weights()
    return ours, theirs


def gradients(model, logits, tokens):
    """Gradients of next-token prediction by parameter name."""
    F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("memory", ["kept", "recomputed", "offloaded"])
def test_logits_and_gradients_are_those_of_transformers(pair, memory):
    """Forward and backward agree to 1e-5 in fp32, whichever way activations are kept."""
    ours, theirs = pair
    for block in ours.model.layers:
        block.recompute = memory != "kept"
        block.offload = memory == "offloaded"
    tokens = torch.randint(0, 97, (2, 64), generator=torch.Generator().manual_seed(0))
    logits, expected_logits = ours(tokens), theirs(input_ids=tokens).logits
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=0)
    found, expected = gradients(ours, logits, tokens), gradients(theirs, expected_logits, tokens)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [False, True])
def test_a_new_model_knows_nothing(tied):
    """Built on the meta device, its loss is ln(vocabulary) ± 0.1 even where a plain 0.02 would give more."""
    shape = {"vocab_size": 4096, "hidden_size": 1024, "head_dim": 256, "num_hidden_layers": 1, "tie_word_embeddings": tied}
    model = build(ModelConfig(**{**LLAMA_2, **shape}))
    tokens = torch.randint(0, 4096, (4, 65), generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert abs(loss - math.log(4096)) < 0.1


def test_position_frequencies_survive_to_empty(pair):
    """``init_weights`` gives the buffer that no checkpoint holds the values of transformers."""
    ours, theirs = pair
    torch.testing.assert_close(ours.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq, atol=0, rtol=1e-6)


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_presets_have_their_number_of_parameters(preset):
    """The arithmetic of the configuration, the model itself, and the published number agree."""
    config = load_file(PRESETS / f"{preset}.yaml").model
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in LlamaForCausalLM(config).parameters())
    assert config.parameters == built == PUBLISHED_PARAMETERS.get(preset, built)


def test_config_json_is_read_back_the_same():
    """transformers understands each key of ``to_hf``: none is kept as a stranger."""
    config = ModelConfig(**{**LLAMA_2, **VARIANTS["llama 3.1"]})
    read = LlamaConfig(**config.to_hf()).to_dict()
    assert {key: read[key] for key in config.to_hf()} == config.to_hf()
    assert set(config.to_hf()) <= set(LlamaConfig().to_dict()) | {"architectures", "dtype"}
