"""Whatever is in the folder of a published model, it is read, or a line names the file and the key."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from podwright_testing.mutations import mutated_bytes
from podwright_training import model_folder
from podwright_training.__main__ import main
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.config.architecture import ModelConfig
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.errors import UserError
from podwright_training.transformers_model import load_model

MODEL = ModelConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    head_dim=4, max_position_embeddings=16, rope_theta=1e4,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, "8", "", "x", -1, 0, 1, 1.5, 10**9, 10**30, 10**400, 1e308, math.nan, math.inf, -math.inf, [], [8], {},
    {"a": {"rope_theta": "x"}}, {"rope_type": "llama3"}, {"rope_type": []}, "\x1b[2J",
)  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    folder = tmp_path_factory.mktemp("published")
    config = {name: value for name, value in MODEL.to_hf().items() if name != "architectures"}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>").save_pretrained(folder)
    return folder


@pytest.fixture
def copied(published: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return shutil.copytree(published, tmp_path / "model")


def lines_of(action: Callable[[], object]) -> list[str]:
    """Return the lines of an action's error for users; any other error passes."""
    try:
        action()
    except UserError as error:
        return str(error).splitlines()
    return []


def test_a_sound_model_has_no_problems(published: Path) -> None:
    """It is read, as by the tests below before they change something."""
    assert HuggingFaceModel(published).problems(MODEL) == []
    load_model(published)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_values_of_a_configuration_are_named(copied: Path, published: Path, data: st.DataObject) -> None:
    """Wrong types, zeros, huge numbers and NaN in any key end in one line, and in no loop."""
    config = json.loads((published / "config.json").read_text())
    place = config
    if data.draw(st.booleans()):
        config["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
        place = data.draw(st.sampled_from([config, config["rope_parameters"]]))
    key = data.draw(st.sampled_from([*sorted(place), "sliding_window", "rope_scaling", "num_experts", "torch_dtype"]))
    if data.draw(st.integers(0, 9)):
        place[key] = data.draw(st.sampled_from(ODD))
    else:
        place.pop(key, None)
    (copied / "config.json").write_text(json.dumps(config))
    for line in HuggingFaceModel(copied).problems(MODEL):
        assert str(copied) in line
        assert len(line.splitlines()) == 1
    for line in lines_of(lambda: load_model(copied)):
        assert str(copied) in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_files_of_a_model_are_a_line(copied: Path, published: Path, name: str) -> None:
    """A value is lost or replaced, the text is cut or is no UTF-8."""
    content = json.loads((published / name).read_text())
    for seed in range(40):
        (copied / name).write_bytes(mutated_bytes(content, Random(seed)))  # noqa: S311 - not for cryptography
        for action in (lambda: load_model(copied), lambda: load_tokenizer(str(copied))):
            assert len(lines_of(action)) <= 1
        assert all(len(line.splitlines()) == 1 for line in HuggingFaceModel(copied).problems(MODEL))


def test_a_damaged_index_is_a_line(copied: Path) -> None:
    """An index lists no file twice, none with another type, and none that is missing."""
    content = {"metadata": {"total_size": 3}, "weight_map": {"lm_head.weight": "model.safetensors"}}
    for seed in range(100):
        (copied / model_folder.INDEX).write_bytes(mutated_bytes(content, Random(seed)))  # noqa: S311
        assert all(len(line.splitlines()) == 1 for line in HuggingFaceModel(copied).problems(MODEL))


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "special_tokens_map.json", model_folder.INDEX])
def test_what_is_no_file_is_a_line(copied: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str) -> None:
    """A pipe in a model's folder holds no command."""
    (copied / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copied / name)
    elif kind == "folder":
        (copied / name).mkdir()
    else:
        (copied / name).symlink_to("/dev/zero")
    assert main(["generate", f"--model={copied}", "--max-new-tokens=1", "--device=cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: cannot read {copied / name}: is a {kind}, not a regular file"


def test_each_problem_has_file_key_value_and_what_is_allowed(copied: Path) -> None:
    """All of a file are in one line."""
    config = json.loads((copied / "config.json").read_text())
    config |= {"hidden_size": "8", "num_hidden_layers": 10**9, "tie_word_embeddings": 1}
    config["rope_parameters"] = {"rope_theta": math.nan, "rope_type": 3}
    (copied / "config.json").write_text(json.dumps(config))
    (line,) = lines_of(lambda: load_model(copied))
    assert line.startswith(f"{copied / 'config.json'}: ")
    for problem in (
        "hidden_size: got '8', need a whole number from 1 to 16,777,216",
        "num_hidden_layers: got 1000000000, need a whole number from 1 to 65,536",
        "tie_word_embeddings: got 1, need true or false",
        "rope_parameters.rope_theta: got nan, need a number above 0",
        "rope_parameters.rope_type: got 3, need a text",
    ):
        assert problem in line
