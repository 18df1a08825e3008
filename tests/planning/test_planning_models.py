"""Shapes and parameter counts of models."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published.models import published_model

from podwright.planning.model import Model, UnknownModelError, model_names
from podwright.planning.trainer_run import model_of
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import PRESETS

# Counted by transformers from the published configurations.
EXACT = {
    "seed_1b": 1_154_549_760,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_1_8b": 8_030_261_248,
    "llama3_1_70b": 70_553_706_496,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "mathstral_7b": 7_248_023_552,
    "mixtral_8x7b": 46_702_792_704,
    "qwen3_8b": 8_190_735_360,
    "qwen3_30b_a3b": 30_532_122_624,
    "deepseek_v3": 671_026_404_352,
    "gpt_oss_120b": 116_829_156_672 - 2_304,  # its sinks, one per head and layer, are not modelled
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_exact(name):
    """A published model has exactly as many parameters as its checkpoint."""
    assert Model.of(name).parameters == EXACT[name]


@pytest.mark.parametrize("name", [*model_names(), "bert_large", "gpt3_23b", "gpt3_175b"])
def test_every_model_agrees_with_its_published_size(name):
    """No shape of the catalog is off by more than rounding of the published size."""
    model = published_model(name)
    assert model.parameters / 1e9 == pytest.approx(model.published_billions, rel=0.008)


OURS = {"tiny", "tiny_moe"}  # presets that nobody published


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_presets_have_as_many_parameters_as_the_trainer_builds(preset):
    """The planner counts what the trainer counts, for every preset; a published one is the catalog's model."""
    config = load_file(PRESETS / f"{preset}.yaml")
    model = model_of(config)
    assert model.parameters == config.model.parameters
    if preset not in OURS:
        assert replace(model, name=preset) == Model.of(preset)


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("Llama-3.2-1B", "llama3_2_1b"),
        ("LLAMA3.2 1b", "llama3_2_1b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_1_8b"),
        ("Meta-Llama-3-8B", "llama3_8b"),
        ("gemma-2b-it", "gemma_2b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek_v3"),
        ("Nemotron-3-Nano (52-layer hybrid Mamba MoE)", "nemotron3_nano_30b_a3b"),
        ("GPT OSS 120B", "gpt_oss_120b"),
    ],
)
def test_names_are_found_however_they_are_spelt(spelt, name):
    """Case, dots, dashes, owner, brackets and the tuned variant do not matter."""
    assert Model.of(spelt).name == name


def test_an_unknown_name_offers_similar_ones():
    """A typing error is answered with the name that was meant."""
    with pytest.raises(UnknownModelError, match="llama3_1_8b"):
        Model.of("lama3_1_8b")


def test_a_mixture_uses_a_part_of_its_experts():
    """Mixtral 8x7B passes two of eight experts: 12.9 of 46.7 billion parameters."""
    model = Model.of("mixtral-8x7b")
    assert round(model.active_parameters / 1e9, 1) == 12.9
    assert model.parameters - model.active_parameters == 6 * 32 * model.one_expert_matrices


@given(st.integers(1, 64), st.sampled_from(["llama3_1_8b", "qwen3_30b_a3b", "gemma2_9b", "deepseek_v3"]))
def test_layers_add_parameters_evenly(extra, name):
    """Every further layer adds the same number of parameters."""
    model = Model.of(name)
    one = replace(model, layers=model.layers + 1).parameters - model.parameters
    assert replace(model, layers=model.layers + extra).parameters - model.parameters == extra * one


@given(st.integers(1, 17).map(lambda power: 2**power))
def test_attention_flops_are_half_under_a_causal_mask(sequence):
    """A causal mask leaves half of the scores; without a window they grow with the length."""
    model = Model.of("llama3_1_8b")
    causal = model.attention_flops_per_token(sequence)
    assert model.attention_flops_per_token(sequence, causal=False) == 2 * causal
    assert model.attention_flops_per_token(2 * sequence) == 2 * causal


def test_a_window_bounds_attention():
    """gpt-oss attends to 128 positions in every other layer, so its attention costs about half of a full one."""
    model = Model.of("gpt-oss-120b")
    full = replace(model, windowed_layers=0).attention_flops_per_token(32_768)
    assert model.attention_flops_per_token(32_768) == pytest.approx(full / 2, rel=0.01)
