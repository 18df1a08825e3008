"""Presets are the published models."""

import re

import pytest
import torch

from podwright_training.config.sources import load_file
from podwright_training.config.train_config import PRESETS
from podwright_training.model import LlamaForCausalLM

PUBLISHED_PARAMETERS = {
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
}
OURS = {"tiny", "tiny_moe", "seed_1b"}  # presets that nobody published


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_presets_have_their_number_of_parameters(preset):
    """The arithmetic of the configuration, the model itself, and the published number agree."""
    config = load_file(PRESETS / f"{preset}.yaml").model
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in LlamaForCausalLM(config).parameters())
    assert config.parameters == built
    if preset not in OURS:
        assert built == PUBLISHED_PARAMETERS[preset], "PUBLISHED_PARAMETERS, above, needs each published preset"


@pytest.mark.parametrize("preset", PUBLISHED_PARAMETERS)
def test_presets_say_their_number_of_parameters(preset):
    """The first line of the file names the published number and where the shape is from."""
    first = (PRESETS / f"{preset}.yaml").read_text().splitlines()[0]
    assert f"{PUBLISHED_PARAMETERS[preset]:,} parameters" in first
    assert re.search(r"https://huggingface.co/[\w-]+/[\w.-]+/blob/main/config.json$", first)
