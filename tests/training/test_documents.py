"""Every command's JSON document is what its schema says."""

import argparse
import json
import shutil
import sys

import pytest
from jsonschema import Draft202012Validator, ValidationError

from podwright_testing.training_documents import as_described
from podwright_training import __main__ as trainer
from podwright_training.commands.schema import DOCUMENTS
from podwright_training.run_folder import NXDT_STEPS, RunFolder


def parsers_of(name):
    """The parsers of a command and of the commands in it."""
    (commands,) = (item for item in trainer._parser([name])._actions if item.choices)
    found = [commands.choices[name]]
    for action in found[0]._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += action.choices.values()
    return found


def test_every_command_with_json_has_a_schema(capsys):
    """All commands that have --json are described, and no others; each schema is one."""
    with_json = {
        name
        for name in trainer.COMMANDS
        if any("--json" in parser._option_string_actions for parser in parsers_of(name))
    }
    assert set(DOCUMENTS) == with_json
    for name in DOCUMENTS:
        assert trainer.main(["schema", name]) == 0
        Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))
    assert trainer.main(["schema", "report", "--job"]) == 2
    assert "got report and --job, need one of them" in capsys.readouterr().err


@pytest.fixture
def ask(capsys):
    """Run a command with --json; return its document, which its schema describes."""

    def asked(*words):
        assert trainer.main([*map(str, words), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        as_described(words[0], document)
        return document

    return asked


def test_documents_of_a_run(undisturbed, tmp_path, ask):
    """Commands on a run print what their schemas say; a key more or less is noticed."""
    root = shutil.copytree(undisturbed, tmp_path / "run")
    (root / "config.yaml").write_text((root / "config.yaml").read_text().replace(str(undisturbed), str(root)))
    run = RunFolder(root)
    replayed = ask("replay", f"--run-dir={root}", "--step=9", "--losses")
    assert replayed["sequences"][0]["loss"] > 0
    assert ask("report", f"--run-dir={root}", "--usd-per-hour=36")["goodput"]["run"]["kinds"][0]["usd"] is not None
    assert ask("consolidate", f"--run-dir={root}")["exported"][0]["model"] == str(run.hf)
    assert ask("consolidate", f"--run-dir={root}", "--all-checkpoints")["exported"]
    assert ask("evaluate", f"--run-dir={root}", "--all-checkpoints", "--prompts", "the")["progression"]
    assert ask("evaluate", f"--model={run.hf}", f"--config={run.config}")["tokens"] > 0
    (text,) = ask("generate", f"--run-dir={root}", "--prompts", "the", "--max-new-tokens=2")["texts"]
    assert text.startswith("the")
    for wrong in ({**replayed, "more": 1}, {key: value for key, value in replayed.items() if key != "digest"}):
        with pytest.raises(ValidationError):
            as_described("replay", wrong)


def test_documents_of_a_dataset(text_dataset, tmp_path, ask):
    """Tokenizer, tokenize and curate print what their schemas say."""
    data = f"--dataset={text_dataset}"
    assert ask("tokenizer", "train", data, f"--output={tmp_path / 'own'}", "--vocab-size=300")["tokens"] >= 300
    ask("tokenizer", "inspect", tmp_path / "own", data, "--documents=3")
    text = (data, f"--tokenizer={text_dataset / 'tokenizer'}")
    assert ask("tokenize", *text, f"--output={tmp_path / 'tokens'}", "--data-workers=1")["tokens"] > 300
    curated = ask("curate", *text, f"--output={tmp_path / 'curated'}", "--workers=1")
    assert curated["manifest"]["splits"]["train"]["documents"] > 0


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """The only program on PATH; it prints that job 42 was submitted."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 42\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.usefixtures("sbatch")
def test_documents_of_a_submitted_curation(text_dataset, tmp_path, ask):
    """With --partition, curate prints the last job's id."""
    text = (f"--dataset={text_dataset}", f"--tokenizer={text_dataset / 'tokenizer'}")
    document = ask("curate", *text, f"--output={tmp_path / 'curated'}", "--partition=cpu")
    assert (document["job"], document["output"]) == ("42", str(tmp_path / "curated"))


@pytest.mark.usefixtures("sbatch")
def test_documents_of_launch(tmp_path, capsys, ask):
    """Launch prints the job's number and commands, of both backends."""
    where = (f"--run-dir={tmp_path / 'run'}", f"--environment={sys.prefix}", "--nodes=1")
    document = ask("launch", *where, "--preset=tiny", "--nproc-per-node=1", "--accelerator=cpu")
    assert (document["job"], document["jobs"]) == (42, {"train": 42})
    options = ["--train-batch-size=1", "--global-batch-size=1024", "--activation-checkpointing-mode=selective"]
    of_nxdt = ["--backend=nxdt", "--preset=llama3_8b", "--instance=ml.trn1.32xlarge"]
    assert trainer.main(["launch", *where, *of_nxdt, "--json", "--", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    as_described("launch", document)
    assert (document["job"], document["jobs"]) == (42, dict.fromkeys(NXDT_STEPS, 42))
    assert document["log"] == str(tmp_path / "run" / "nxdt" / "train.log")
