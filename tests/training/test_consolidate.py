"""The exported model is the trained one."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from podwright_training import checkpoint
from podwright_training.__main__ import main
from podwright_training.consolidate import consolidate, load_model
from podwright_training.evaluate import evaluate
from podwright_training.run import RunFolder


@pytest.fixture(scope="module")
def exported(undisturbed, tmp_path_factory):
    """A run with its consolidated model."""
    root = shutil.copytree(undisturbed, tmp_path_factory.mktemp("exported"), dirs_exist_ok=True)
    (root / "config.yaml").write_text((root / "config.yaml").read_text().replace(str(undisturbed), str(root)))
    assert main(["consolidate", "--run_dir", str(root)]) == 0
    return RunFolder(root)


def test_transformers_computes_the_same_logits(exported):
    """``from_pretrained`` gives our model's logits to 1e-5 in fp32."""
    ours = load_model(checkpoint.newest(exported.checkpoints))
    theirs = AutoModelForCausalLM.from_pretrained(exported.hf)
    tokens = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=tokens).logits, ours(tokens), atol=1e-5, rtol=0)
    assert theirs.dtype == torch.float32


def test_the_tokenizer_comes_with_it(exported, text_dataset):
    """It encodes as the one trained with, and generation knows where a text ends."""
    tokenizer = AutoTokenizer.from_pretrained(exported.hf)
    text = "the node writes a file"
    assert tokenizer(text).input_ids == AutoTokenizer.from_pretrained(text_dataset / "tokenizer")(text).input_ids
    generation = json.loads((exported.hf / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id


def test_the_perplexity_is_the_trainers_own(exported):
    """On the trainer's validation batches transformers finds its perplexity to 6 digits, in one process instead of two."""
    found = evaluate(exported)
    assert found["step"] == 12
    assert found["relative_difference"] < 1e-6
    assert found["trainer_perplexity"] == list(exported.events("validation"))[-1]["perplexity"]


def test_a_second_export_replaces_the_first(exported):
    """No file of the first is left, and nothing besides."""
    (exported.hf / "stale").touch()
    consolidate(exported)
    assert not (exported.hf / "stale").exists()
    assert not list(exported.root.glob(".*"))


def test_without_a_run_or_a_model_it_is_said(tmp_path, undisturbed, capsys):
    """One line tells what to do first."""
    assert main(["consolidate", "--run_dir", str(tmp_path)]) == 2
    assert "no training has started there" in capsys.readouterr().err
    assert main(["evaluate", "--run_dir", str(undisturbed)]) == 2
    assert f"run `podwright-train consolidate --run_dir {undisturbed}` first" in capsys.readouterr().err
