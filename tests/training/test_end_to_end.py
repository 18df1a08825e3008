"""Raw prose becomes a model that somebody uses."""

import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.commands.generate import generate
from podwright_training.config.sources import load_run
from podwright_training.data.stream import open_stream
from podwright_training.report import summary
from podwright_training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 512


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """This project's pages, prepared, tokenized by a tokenizer of their own, and curated: what each command printed."""
    folder = tmp_path_factory.mktemp("prose")
    (folder / "texts").mkdir()
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        shutil.copy(page, folder / "texts")
    data, made = ("--dataset", folder / "data"), ("--tokenizer", folder / "tok", "--output")
    kept = ("--filters", "gopher_repetition", "--mask-personal", "--validation-fraction", 0.2)
    return {
        "prepare": run(
            "prepare", folder / "texts", "--output", folder / "data", "--shards", 2, "--validation-fraction", 0.1
        ),
        "tokenizer": run(
            *("tokenizer", "train", *data, "--output", folder / "tok"),
            *("--vocab-size", VOCAB_SIZE, "--pattern", "llama3"),
        ),
        "tokenize": run("tokenize", *data, *made, folder / "shards", "--data-workers", 1),
        "curate": run("curate", *data, *made, folder / "tokens", "--workers", 1, *kept),
    }


def run(*arguments):
    """Run a command and return what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(list(map(str, arguments))) == 0
    return printed.getvalue()


def last_line(printed):
    """The command that the last line is, as arguments."""
    program, *arguments = shlex.split(printed.splitlines()[-1])
    assert program == "podwright-train"
    return arguments


@pytest.fixture
def small(tiny_flags, tmp_path):
    """Flags of a run that takes seconds, without those that say what it reads."""
    read = ("--dataset", "--tokenizer", "--vocab-size", "--data-streams")

    def small(**options):
        return [flag for flag in tiny_flags(tmp_path / "run", ranks=1, **options) if not flag.startswith(read)]

    return small


@pytest.mark.parametrize("command", ["prepare", "tokenize", "tokenizer"])
@pytest.mark.slow
def test_the_last_line_is_the_next_command(dataset, small, tmp_path, monkeypatch, command):
    """It runs as it was printed: training on the dataset or its tokens, or an inspection of the tokenizer."""
    monkeypatch.chdir(tmp_path)
    arguments = last_line(dataset[command])
    if arguments[0] == "train":
        run(*arguments, *small(max_steps=1))
    else:
        assert "bytes per token" in run(*arguments)


def loss_of_transformers(folder, tokens):
    """The loss by the logits of transformers' whole forward pass, on the validation tokens."""
    options = load_run(folder)
    model = AutoModelForCausalLM.from_pretrained(folder.hf).eval()
    stream = open_stream(
        replace(options, data_workers=0), split="validation", tokenizer=str(folder.hf), rank=0, world_size=1,
        local_batch_size=1,
    )  # fmt: skip
    batches = [stream.next_batch() for _ in range(tokens // options.max_context_width)]
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model(input_ids=batch.tokens_BT).logits[0], batch.labels_BT[0])
            for batch in batches
        ]
    return float(torch.stack(losses).mean())


@pytest.mark.slow
def test_from_prose_to_a_model_that_writes(dataset, small, tmp_path):
    """After the line that curate printed, perplexities by the trainer, us and transformers agree to 4 digits."""
    folder = RunFolder(tmp_path / "run")
    size = {"max_context_width": 64, "max_steps": 8, "validation_freq": 4, "sample_tokens": 8}
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The cluster\n\nIf you want to train a model\n")
    run(*last_line(dataset["curate"]), *small(**size, checkpoint_freq=4, sample_prompts=prompts))
    assert next(Path(load_run(folder).dataset).glob("train-*.safetensors"))
    run("consolidate", "--run-dir", folder.root)
    printed = run("evaluate", "--json", "--run-dir", folder.root, "--all-checkpoints", "--prompts", "The cluster")
    found = json.loads(printed)
    assert found["relative_difference"] < 5e-5
    assert loss_of_transformers(folder, found["tokens"]) == pytest.approx(found["loss"], rel=5e-5)
    first, last = found["progression"]
    assert last["perplexity"] < first["perplexity"] < VOCAB_SIZE
    generator = pipeline("text-generation", model=str(folder.hf), tokenizer=str(folder.hf), device="cpu")
    (written,) = generator("The cluster", max_new_tokens=8, do_sample=False)
    assert written["generated_text"].startswith("The cluster")
    assert len(written["generated_text"]) > len("The cluster")
    early, late = logged(folder, "sample")
    assert (early["step"], late["step"]) == (4, 8)
    assert late["texts"] == generate(
        folder.hf, ["The cluster", "If you want to train a model"], max_new_tokens=8, temperature=0, seed=0
    )
    assert len(AutoTokenizer.from_pretrained(folder.hf)) == VOCAB_SIZE
    run("report", "--run-dir", folder.root)
    page = re.sub(r"<[^>]*>", " ", (folder.report / "index.html").read_text())
    for words in (
        "Ended after step 8: max_steps.",
        "Progression",
        "Samples by step",
        summary.brief(last["perplexity"]),
        "The cluster",
    ):
        assert words in page
