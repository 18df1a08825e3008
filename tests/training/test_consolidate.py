"""The exported model is the trained one."""

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint import checkpoint_reader, step_folder, trainer_state
from podwright_training.checkpoint.export import export, weights_of
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.checkpoint.tensor_reader import TensorReader
from podwright_training.code_version import code_version
from podwright_training.commands.consolidate import consolidate
from podwright_training.commands.evaluate import evaluate
from podwright_training.config.architecture import RopeScaling
from podwright_training.config.export_options import ExportOptions
from podwright_training.config.sources import load_run
from podwright_training.data.stream import open_stream
from podwright_training.data.tokenizer import Encoder, load_tokenizer
from podwright_training.errors import UserError
from podwright_training.harness import run_tasks
from podwright_training.json_document import to_values
from podwright_training.loop.batch_replay import replay
from podwright_training.report import summary
from podwright_training.run_folder import RunFolder, commit_folder, delete_folder

SMALL_FILES = ExportOptions(max_shard_gb=20e-6)
STILL = {"lr": 1e-12, "min_lr": 0}  # steps that change no weight


@pytest.fixture(scope="module")
def exported(undisturbed, tmp_path_factory):
    """A run with its consolidated model."""
    root = shutil.copytree(undisturbed, tmp_path_factory.mktemp("exported"), dirs_exist_ok=True)
    (root / "config.yaml").write_text((root / "config.yaml").read_text().replace(str(undisturbed), str(root)))
    assert main(["consolidate", "--run-dir", str(root)]) == 0
    return RunFolder(root)


def test_transformers_computes_the_same_logits(exported, model_of):
    """``from_pretrained`` gives our model's logits to 1e-5 in fp32."""
    ours = model_of(step_folder.newest(exported.checkpoints))
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
    for name in ("generation_config.json", "config.json"):
        assert json.loads((exported.hf / name).read_text())["eos_token_id"] == tokenizer.eos_token_id
    config = AutoConfig.from_pretrained(exported.hf)
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)


def test_a_tokenizer_that_was_written_anew_is_not_exported(exported, text_dataset, tmp_path, capsys):
    """With the same tokens under other ids the export would decode to other text: one line says so."""
    folder = Path(shutil.copytree(text_dataset / "tokenizer", tmp_path / "tokenizer"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (token for token, number in vocabulary.items() if number in {70, 80})
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = exported.config.read_text()
    exported.config.write_text(re.sub(r"(?m)^tokenizer: .*$", f"tokenizer: {folder}", config))
    before = exported.hf.stat().st_ino
    assert main(["consolidate", "--run-dir", str(exported.root)]) == 2
    exported.config.write_text(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"tokenizer {folder} has changed since checkpoint" in line
    assert exported.hf.stat().st_ino == before


def test_a_checkpoint_of_an_earlier_version_is_exported(exported, text_dataset):
    """Its digest is of the vocabulary alone, which is what an export needs to be the same."""
    encoder = Encoder(load_tokenizer(str(text_dataset / "tokenizer")))
    newest = step_folder.newest(exported.checkpoints)
    _replace_digest_of_the_tokenizer(newest, encoder.earlier_digest)
    try:
        assert main(["consolidate", "--run-dir", str(exported.root)]) == 0
    finally:
        _replace_digest_of_the_tokenizer(newest, encoder.digest)


def test_the_perplexity_is_the_trainers_own(exported):
    """On the trainer's batches transformers finds its perplexity to 6 digits, in one process instead of two."""
    found = evaluate(exported)
    assert found.step == 12
    assert found.trainer.relative_difference < 1e-6
    assert found.trainer.trainer_perplexity == list(logged(exported, "validation"))[-1]["perplexity"]
    assert evaluate(exported, dtype="bfloat16").trainer.relative_difference < 0.01


def test_a_card_describes_it(exported, text_dataset):
    """The card names data, steps, tokens and losses, and its head is what the hub reads."""
    head, _, body = (exported.hf / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head) == {"library_name": "transformers", "pipeline_tag": "text-generation"}
    rows = dict(
        line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ") and "| |" not in line
    )
    (validation,) = logged(exported, "validation")
    assert (rows["steps"], rows["tokens"], rows["data"]) == ("12", f"{12 * 8 * 32:,}", str(text_dataset))
    assert rows["validation loss, nats per token"] == f"{validation['loss']:.4f}"
    assert rows["code"] == next(logged(exported, "start"))["code"] == code_version()


def test_the_code_is_named_by_its_commit(tmp_path):
    """In a checkout it is the commit, and whether files differ from it; elsewhere the version."""
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "code.py").touch()
    (tmp_path / "other.py").touch()
    assert code_version(tmp_path / "code.py").startswith("podwright-training ")
    for command in (("init", "-q"), ("add", "code.py"), ("commit", "-q", "-m", "a")):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert code_version(tmp_path / "code.py") == f"git {commit}"
    assert code_version(tmp_path / "other.py").startswith("podwright-training ")
    (tmp_path / "code.py").write_text("changed")
    assert code_version(tmp_path / "code.py") == f"git {commit}-dirty"


def test_a_harness_that_is_missing_or_fails_is_one_line(exported, capsys):
    """The line says how to install it; what it printed last is shown."""
    command = ["evaluate", "--run-dir", str(exported.root), "--tasks", "none", "--lm-eval"]
    assert main([*command, "no-such-program"]) == 2
    assert "there is no no-such-program on PATH; uv tool install --with torch" in capsys.readouterr().err
    assert main([*command, shutil.which("uname")]) == 2
    assert f"{shutil.which('uname')} failed with exit status 1:" in capsys.readouterr().err


def test_a_step_without_validation_is_evaluated(exported, capsys):
    """A run that was stopped between validations has its own figures; an export that names no step is refused."""
    consolidate(exported, step=8)
    of_run = evaluate(exported)
    assert (of_run.step, of_run.tokens) == (8, 16 * 32)
    assert of_run.trainer is None
    (exported.hf / "podwright.json").write_text("{}")
    assert main(["evaluate", "--run-dir", str(exported.root)]) == 2
    assert "podwright.json does not have the step of the model: run `podwright-train" in capsys.readouterr().err
    consolidate(exported)


def test_the_harness_gets_the_whole_path(tmp_path):
    """A folder's name may have commas and equals signs, as those of sweeps."""
    program = tmp_path / "harness"
    program.write_text('#!/bin/sh\necho "$4"; exit 1\n')
    program.chmod(0o755)
    with pytest.raises(UserError, match=re.escape('"pretrained": "lr=1,wd=2/hf"')):
        run_tasks(Path("lr=1,wd=2/hf"), ["a"], program=str(program), include_path=None, device="cpu", dtype="float32")


def test_the_harness_runs_no_code_of_a_model_or_dataset(tmp_path):
    """Loaders of the harness ask on a terminal, or run it, unless an argument forbids it."""
    program = tmp_path / "harness"
    program.write_text('#!/bin/sh\necho "$4 $HF_DATASETS_TRUST_REMOTE_CODE"; exit 1\n')
    program.chmod(0o755)
    with pytest.raises(UserError, match=r'"trust_remote_code": false\} 0$'):
        run_tasks(tmp_path, ["a"], program=str(program), include_path=None, device="cpu", dtype="float32")


def test_bits_per_byte(exported):
    """Loss and bits per byte agree for the text whose tokens were predicted."""
    found, options = evaluate(exported), load_run(exported)
    stream = open_stream(
        replace(options, data_workers=0), split="validation", tokenizer=str(exported.hf), rank=0, world_size=1,
        local_batch_size=1,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(exported.hf)
    rows = [stream.next_batch().labels_BT[0] for _ in range(found.tokens // options.max_context_width)]
    text = "".join(tokenizer.decode(row, skip_special_tokens=True) for row in rows)
    bits = found.quality.loss / math.log(2) * found.tokens
    assert found.quality.bits_per_byte == pytest.approx(bits / len(text.encode()), rel=1e-3)


@pytest.mark.slow
def test_every_checkpoint_is_evaluated(exported, capsys):
    """Loss falls from checkpoint to checkpoint; each continues the prompts; the last is as the exported model."""
    command = ["evaluate", "--run-dir", str(exported.root), "--all-checkpoints", "--prompts", "the node"]
    assert main(command) == 0
    lines, found = capsys.readouterr().out.splitlines(), json.loads(exported.evaluation.read_text())
    steps = found["progression"]
    assert [step["step"] for step in steps] == [4, 8, 12]
    assert steps[0]["loss"] > steps[1]["loss"] > steps[2]["loss"] == found["loss"]
    assert all(step["samples"][0].startswith("the node") for step in steps)
    assert lines[0] == f"{exported.hf}, step 12, on {found['tokens']:,} tokens"
    assert f"  loss {found['loss']:.4f} nats per token, perplexity {found['perplexity']:.5g}" in lines[1]
    assert [line for line in lines if line.startswith("checkpoint")] == [f"checkpoint of step {n}" for n in (4, 8, 12)]
    assert sum(line.startswith('  writes "the node') for line in lines) == 3
    assert not list(exported.root.glob(".evaluate*"))
    main(["report", "--run-dir", str(exported.root), "--json"])
    assert json.loads(capsys.readouterr().out)["page"] == str(exported.report / "index.html")
    page = (exported.report / "index.html").read_text()
    assert f"<td>{summary.brief(steps[1]['perplexity'])}</td>" in page


def test_a_checkpoint_can_be_chosen(exported):
    """An older step is exported by its number, and a step without a checkpoint is an error with those that have one."""
    path = consolidate(exported, step=8)
    assert path.name == "step-00000008"
    assert json.loads((exported.hf / "podwright.json").read_text())["step"] == 8
    with pytest.raises(UserError, match="no complete checkpoint of step 9; it has steps 4, 8, 12"):
        consolidate(exported, step=9)
    consolidate(exported)


def test_checkpoints_are_averaged(exported, capsys):
    """Every weight is the mean of the last three checkpoints'; the card says which, and gives no loss of another."""
    consolidate(exported, ExportOptions(average=3))
    there = load_file(exported.hf / "model.safetensors")
    names = list(there)
    each = [read(path, [f"model.{name}" for name in names]) for path in step_folder.intact(exported.checkpoints)]
    for name in names:
        mean = torch.stack([tensors[f"model.{name}"] for tensors in each]).mean(dim=0)
        torch.testing.assert_close(there[name], mean, atol=1e-7, rtol=0)
    card = (exported.hf / "README.md").read_text()
    assert "| weights | mean of steps 4, 8, 12 |" in card
    assert "loss" not in card
    command = ["consolidate", "--run-dir", str(exported.root), "--average"]
    assert main([*command, "2", "--step", "4"]) == 2
    assert "--average 2 needs 2 checkpoints up to step 4, there is 1 (step 4): train with" in capsys.readouterr().err
    assert main([*command, "4"]) == 2
    assert "needs 4 checkpoints up to step 12, there are 3 (steps 4, 8, 12): train with" in capsys.readouterr().err
    assert main([*command, "0"]) == 2
    assert main([*command, "2", "--all-checkpoints"]) == 2
    consolidate(exported)


def test_runs_are_merged(exported, tiny_flags, tmp_path, capsys):
    """Every weight is the mean of both runs' newest checkpoints; a run of another model or tokenizer is refused."""
    other = RunFolder(Path(shutil.copytree(exported.root, tmp_path / "other")))
    config = other.config.read_text().replace(str(exported.root), str(other.root))
    other.config.write_text(config)
    shutil.rmtree(step_folder.newest(other.checkpoints))
    command = ["consolidate", "--run-dir", str(exported.root), "--merge-with"]
    assert main([*command, str(other.root)]) == 0
    there = load_file(exported.hf / "model.safetensors")
    newest = [step_folder.newest(folder.checkpoints) for folder in (exported, other)]
    assert [path.name for path in newest] == ["step-00000012", "step-00000008"]
    for name, weight in there.items():
        each = [read(path, [f"model.{name}"])[f"model.{name}"] for path in newest]
        torch.testing.assert_close(weight, torch.stack(each).mean(dim=0), atol=1e-7, rtol=0)
    card = (exported.hf / "README.md").read_text()
    assert f"| weights | mean of other at step 8, {exported.root.name} at step 12 |" in card

    assert (
        main(
            ["train", *tiny_flags(tmp_path / "wide", ranks=1, max_steps=1, intermediate_size=96, rope_scaling_factor=8)]
        )
        == 0
    )
    other.config.write_text(re.sub("^tokenizer: .*", "tokenizer: another", config, flags=re.MULTILINE))
    _replace_digest_of_the_tokenizer(newest[1], "0" * 16)
    assert main([*command, str(tmp_path / "wide"), str(other.root)]) == 2
    error = capsys.readouterr().err
    assert f"--merge-with {tmp_path / 'wide'}: intermediate_size 96 there, " in error
    assert f"--merge-with {other.root}: tokenizer another there, " in error
    assert main(["consolidate", f"--run-dir={tmp_path / 'wide'}", f"--merge-with={exported.root}"]) == 2
    assert "no rope_scaling_factor there, rope_scaling_factor 8 here" in capsys.readouterr().err
    assert main([*command, str(other.root), "--average", "2"]) == 2
    consolidate(exported)


def read(path, names):
    """Return whole tensors of a checkpoint, as PyTorch reads them."""
    entries = checkpoint_reader.shapes(path)
    tensors = {name: torch.empty(entries[name].size, dtype=entries[name].properties.dtype) for name in names}
    load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


def _replace_digest_of_the_tokenizer(checkpoint, digest):
    """Edit a checkpoint as if it had been trained with another tokenizer; the digests are equally long."""
    state, manifest = checkpoint / "trainer.json", checkpoint / "manifest.json"
    before = hashlib.sha256(state.read_bytes()).hexdigest()
    state.write_text(state.read_text().replace(trainer_state.tokenizer_digest(checkpoint), digest))
    manifest.write_text(manifest.read_text().replace(before, hashlib.sha256(state.read_bytes()).hexdigest()))


def test_perplexity_by_source(tiny_flags, text_dataset, tmp_path):
    """The sources' losses, weighted by their tokens, are the loss."""
    (tmp_path / "mixture.yaml").write_text(
        "".join(f"{name}: {{dataset: {text_dataset}, weight: {weight}}}\n" for name, weight in (("a", 3), ("b", 1)))
    )
    run = tmp_path / "run"
    assert main(["train", *tiny_flags(run, ranks=1, max_steps=1, data_mixture=tmp_path / "mixture.yaml")]) == 0
    assert main(["consolidate", "--run-dir", str(run)]) == 0
    found = evaluate(RunFolder(run))
    sources = found.sources
    assert sources["a"].tokens > 2 * sources["b"].tokens > 0
    assert found.trainer.relative_difference < 1e-6
    weighted = sum(source.quality.loss * source.tokens for source in sources.values()) / found.tokens
    assert weighted == pytest.approx(found.quality.loss)


def test_documents_are_evaluated_as_they_were_trained(tiny_flags, tmp_path):
    """With a document mask, transformers attends within documents too: the same perplexity."""
    flags = tiny_flags(tmp_path, ranks=1, document_mask=1, validation_batches=1, max_steps=12)
    assert main(["train", *flags]) == 0
    assert main(["consolidate", "--run-dir", str(tmp_path)]) == 0
    assert evaluate(RunFolder(tmp_path)).trainer.relative_difference < 1e-6


def test_a_run_can_be_exported_from_any_folder(text_dataset, tiny_flags, tmp_path, monkeypatch):
    """Relative paths are those of the folder that training started in, and the run's folder may have moved since."""
    shutil.copytree(text_dataset, tmp_path / "work" / "ds")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    flags = tiny_flags("runs/a", ranks=1, max_steps=1, dataset="ds", tokenizer="ds/tokenizer")
    assert main(["train", *flags]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "work" / "runs" / "a").rename(tmp_path / "moved")
    assert main(["consolidate", "--run-dir", "../moved"]) == 0
    assert len(AutoTokenizer.from_pretrained(tmp_path / "moved" / "hf")) == 300


@pytest.mark.parametrize("given", ["text", "file"])
def test_the_datasets_of_a_mixture_are_found_from_any_folder(text_dataset, tiny_flags, tmp_path, monkeypatch, given):
    """A run is evaluated, replayed and resumed elsewhere, with the names of its sources as they were written."""
    for name in "ab":
        shutil.copytree(text_dataset, tmp_path / "work" / "ds" / name)
    mixture, sets = "ds/a=0.7,ds/b=0.3", "held=ds/b"
    if given == "file":
        mixture, sets = "mixes/m.yaml", "mixes/sets.yaml"
        (tmp_path / "work" / "mixes").mkdir()
        entries = "ds/a: {dataset: ../ds/a, weight: 7}\nds/b: {dataset: ../ds/b, weight: 3}"
        (tmp_path / "work" / mixture).write_text(entries)
        (tmp_path / "work" / sets).write_text("held: {dataset: ../ds/b}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    options = {"data_mixture": mixture, "validation_datasets": sets, "tokenizer": "ds/a/tokenizer"}
    assert main(["train", *tiny_flags("../run", ranks=1, max_steps=2, **options)]) == 0

    monkeypatch.chdir(tmp_path / "elsewhere")
    run = RunFolder(Path("../run"))
    assert main(["consolidate", "--run-dir", "../run"]) == 0
    assert set(evaluate(run).sources) == {"ds/a", "ds/b"}
    assert replay(run, 2, losses=False).step == 2
    assert main(["train", "--config=../run/config.yaml", "--max-steps=3"]) == 0
    *_, validated = logged(run, "validation")
    assert (validated["step"], set(validated["losses"])) == (3, {"held"})


def export_until_killed(folder):
    """Export a run's newest checkpoint; end by SIGKILL in the middle, when two files were read back."""
    written, record = [], folder.root / ".killed.partial" / "podwright.json"

    def end_it(count):
        written.append(count)
        if sum(written) > 90_000:
            while len(json.loads(record.read_text())["files"]) < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    path = step_folder.newest(folder.checkpoints)
    export(path, folder.root / "killed", load_run(folder), SMALL_FILES, on_bytes=end_it)


def test_a_killed_export_goes_on(exported, model_of, fork_server):
    """Files that were read back stay, one that changed since is written again, and the result is whole."""
    path, target = step_folder.newest(exported.checkpoints), exported.root / "killed"
    answer = fork_server(script=__file__, argv=[str(exported.root)], ranks=1)
    assert answer["status"] == -signal.SIGKILL, answer["output"]
    assert not target.exists()
    partial = exported.root / ".killed.partial"
    first, second, *_ = finished = sorted(json.loads((partial / "podwright.json").read_text())["files"])
    before = (partial / first).stat().st_mtime_ns
    content = bytearray((partial / second).read_bytes())
    content[-1] ^= 1
    (partial / second).write_bytes(content)
    export(path, target, load_run(exported), SMALL_FILES)
    assert len(finished) < len(list(target.glob("*.safetensors")))
    assert (target / first).stat().st_mtime_ns == before
    theirs = AutoModelForCausalLM.from_pretrained(target).state_dict()
    for name, weight in model_of(path).named_parameters():
        assert torch.equal(theirs[name], weight.detach())
    shutil.rmtree(target)


def test_every_checkpoint_can_be_exported(exported, capsys):
    """Each has a folder by its name; the second time they are there."""
    command = ["consolidate", "--run-dir", str(exported.root), "--all-checkpoints"]
    assert main(command) == 0
    names = sorted(path.name for path in exported.hf_steps.iterdir())
    assert names == ["step-00000004", "step-00000008", "step-00000012"]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out.count("is there\n") == len(names)
    assert main([*command, "--dtype", "bf16"]) == 0
    assert AutoModelForCausalLM.from_pretrained(exported.hf_steps / names[0]).dtype == torch.bfloat16


def test_text_comes_from_any_checkpoint(exported, capsys):
    """A checkpoint writes what its export writes, by its step or from a folder."""
    consolidate(exported, step=8)
    words = ("--prompts", "the node", "--temperature", "0", "--max-new-tokens", "8")
    texts = []
    for source in (("--run-dir", exported.root), ("--run-dir", exported.root, "--step", 8), ("--model", exported.hf)):
        assert main(["generate", *map(str, source), *words]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith("the node")
    assert texts == texts[:1] * 3
    assert main(["generate", "--run-dir", str(exported.root), "--step", "9"]) == 2
    assert "no complete checkpoint of step 9; it has steps 4, 8, 12" in capsys.readouterr().err
    consolidate(exported)


def test_ranks_share_an_evaluation(exported, call_ranks):
    """Three sequences a batch on two ranks judge the sequences that one process judges, the last ones too."""
    config = exported.config.read_text()
    exported.config.write_text(re.sub(r"(?m)^val_batch_size: .*$", "val_batch_size: 3", config))
    try:
        status, output = call_ranks(2, "evaluate", "--run-dir", exported.root)
    finally:
        exported.config.write_text(config)
    assert status == 0, output
    shared, alone = json.loads(exported.evaluation.read_text()), evaluate(exported).quality
    assert shared["loss"] == pytest.approx(alone.loss, rel=1e-9)
    assert shared["bits_per_byte"] == pytest.approx(alone.bits_per_byte, rel=1e-9)


def test_any_model_is_judged_on_a_text(exported, text_dataset, call_ranks, capsys):
    """An export has its run's loss on the run's text, on two ranks too; what a model does to its logits counts."""
    assert main(["evaluate", "--model", str(exported.hf), "--config", str(exported.config), "--json"]) == 0
    found, of_run = json.loads(capsys.readouterr().out), to_values(evaluate(exported))
    assert found == {"model": str(exported.hf), **{name: of_run[name] for name in list(found)[1:]}}
    text = ("--dataset", text_dataset, "--max-context-width", 32, "--validation-sequences", 16, "--data-streams", 4)
    status, output = call_ranks(2, "evaluate", "--model", exported.hf, *text, "--json")
    assert status == 0, output
    assert json.loads(output[output.index("{") :])["loss"] == pytest.approx(of_run["loss"], rel=1e-9)
    capped = exported.root / "capped"
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma2Config(vocab_size=300, head_dim=8, num_key_value_heads=1, final_logit_softcapping=0.1, **shape)
    model = Gemma2ForCausalLM(config)
    model.save_pretrained(capped)
    AutoTokenizer.from_pretrained(exported.hf).save_pretrained(capped)
    assert main(["evaluate", "--model", str(capped), *map(str, text), "--json"]) == 0
    options = replace(load_run(exported), data_workers=0)
    stream = open_stream(
        options, split="validation", tokenizer=str(capped), rank=0, world_size=1, local_batch_size=16
    )  # fmt: skip
    batch = stream.next_batch()
    with torch.no_grad():
        logits_SV = model.eval()(input_ids=batch.tokens_BT).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits_SV, batch.labels_BT.flatten())
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_folder_that_is_no_whole_language_model_is_refused(exported, text_dataset, tmp_path, capsys):
    """Without its tokenizer, without a weight, cut short, of another kind: each is one line, and no figure."""
    shutil.copytree(exported.hf, tmp_path, dirs_exist_ok=True)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    command = ["evaluate", "--model", str(tmp_path), "--dataset", str(text_dataset)]

    def refusal(*more):
        assert main([*command, *more]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return line

    assert refusal() == (
        "error: max_context_width is 2048, the model's max_position_embeddings 32: use --max-context-width 32, or less"
    )
    content = weights.read_bytes()
    weights.write_bytes(content[:-8])
    assert "Error while deserializing header" in refusal()
    weights.write_bytes(content)
    tensors = load_file(weights)
    tensors.pop("model.norm.weight")
    save_file(tensors, weights, metadata={"format": "pt"})
    assert "lacks 1 weights of its model, the first of them model.norm.weight" in refusal()
    config.write_text('{"model_type": "t5"}')
    assert "Unrecognized configuration class" in refusal()
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    assert "has no tokenizer (tokenizer.json)" in refusal()


def test_a_model_and_a_run_are_judged_on_their_own_text(exported, text_dataset, capsys):
    """A model without a text, or a run with one, is refused before anything is loaded."""
    for arguments, reason in (
        (("--model", exported.hf), "--model needs a text to judge it on: --dataset, or --config"),
        (
            ("--model", exported.hf, "--dataset", text_dataset, "--all-checkpoints"),
            "only --run-dir has checkpoints",
        ),
        (("--run-dir", exported.root, "--val-batch-size", 2), "got --val-batch-size with --run-dir"),
    ):
        assert main(["evaluate", *map(str, arguments)]) == 2
        assert reason in capsys.readouterr().err


def test_an_export_that_fails_leaves_nothing(exported, capsys):
    """Exporting a run without its tokenizer fails: one line says so, and no half-written folder stays."""
    config = exported.config.read_text()
    exported.config.write_text(re.sub(r"(?m)^tokenizer: .*$", "tokenizer: /nowhere", config))
    try:
        assert main(["consolidate", "--run-dir", str(exported.root)]) == 2
    finally:
        exported.config.write_text(config)
    assert "error: tokenizer '/nowhere'" in capsys.readouterr().err
    assert not list(exported.root.glob(".hf*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_one_line(exported, tmp_path):
    """The line names folder and reason, and no half-written folder takes what space there is."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        with pytest.raises(UserError, match=f"cannot export to {tmp_path}/hf: .*No space left on device"):
            export(step_folder.newest(exported.checkpoints), tmp_path / "hf", load_run(exported))
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_second_export_replaces_the_first(exported):
    """No file of the first is left, and nothing besides."""
    (exported.hf / "stale").touch()
    consolidate(exported)
    assert not (exported.hf / "stale").exists()
    assert not list(exported.root.glob(".hf*"))


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another file system than the tests' folders: a rename from one to the other fails."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if Path(name).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("the tests' folder is on /dev/shm too")
        yield Path(name)


@pytest.mark.parametrize("exists", [True, False])
def test_folders_that_are_links_are_followed(exported, tmp_path, other_disk, exists):
    """A model, a report and checkpoints on another disk are written there; the links stay, and nothing else is left."""
    run = RunFolder(tmp_path / "run")
    shutil.copytree(exported.root, run.root)
    run.config.write_text(run.config.read_text().replace(str(exported.root), str(run.root)))
    links = {
        name: run.root / name for name in ("hf", "hf-steps", "report", "checkpoints", "samples.txt", "metrics.jsonl")
    }
    for name, link in links.items():
        if link.exists() and (exists or name in {"checkpoints", "metrics.jsonl"}):
            shutil.move(link, other_disk / name)
        elif link.is_file():  # another test has written samples
            link.unlink()
        elif link.exists():
            shutil.rmtree(link)
        if name == "hf-steps":  # the folder of several exports is made by hand on the other disk
            (other_disk / name).mkdir(exist_ok=True)
        link.symlink_to(other_disk / name)
    directory = f"--run-dir={run.root}"
    (other_disk / "checkpoints" / "step-00000004").rename(other_disk / "four")
    (other_disk / "checkpoints" / "step-00000004").symlink_to(other_disk / "four")
    bf16, few = "--dtype=bf16", "--max-new-tokens=2"
    for command, *flags in (
        ["consolidate", bf16], ["consolidate", "--all-checkpoints", bf16], ["report"], ["generate", few],
    ):  # fmt: skip
        assert main([command, directory, *flags]) == 0
    assert all(link.is_symlink() for link in links.values())
    for name in ("hf/model.safetensors", "report/index.html", "report/loss.svg", "samples.txt"):
        assert (other_disk / name).is_file(), name
    assert len(list((other_disk / "hf-steps").iterdir())) == 3
    assert not [path for path in other_disk.rglob(".*") if "metadata" not in path.name]
    assert not list(run.root.rglob(".*.partial"))


def test_a_checkpoint_that_is_a_link_is_written_again_and_removed(tmp_path, other_disk):
    """A new folder of its step is put where the link leads; removing a checkpoint removes the link alone."""
    (other_disk / "four").mkdir()
    (other_disk / "four" / "old").touch()
    link = tmp_path / "step-00000004"
    link.symlink_to(other_disk / "four")
    final, partial = step_folder.folders(tmp_path, 4)
    partial.mkdir()
    (partial / "new").touch()
    commit_folder(partial, final)
    assert (link.is_symlink(), [path.name for path in other_disk.rglob("*")]) == (True, ["four", "new"])
    delete_folder(link)
    assert (link.is_symlink(), (other_disk / "four" / "new").exists()) == (False, True)


def test_a_link_into_nowhere_is_one_line(exported, tmp_path, capsys):
    """As to a disk that is not mounted: nothing is written, and the line names link and target."""
    run = RunFolder(shutil.copytree(exported.root, tmp_path / "run"))
    shutil.rmtree(run.hf)
    run.hf.symlink_to("/nowhere/disk/hf")
    assert main(["consolidate", f"--run-dir={run.root}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {run.hf} is a link to /nowhere/disk/hf, where there is no folder")


def test_several_files_in_bf16_hold_the_same_weights(exported, model_of):
    """Files stay below their largest size, an index leads to them, and the weights are rounded, no more."""
    consolidate(exported, ExportOptions(dtype="bf16", max_shard_gb=20e-6))
    files = sorted(exported.hf.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 22_000 for file in files)
    theirs = AutoModelForCausalLM.from_pretrained(exported.hf).state_dict()
    for name, weight in model_of(step_folder.newest(exported.checkpoints)).named_parameters():
        assert torch.equal(theirs[name], weight.detach().to(torch.bfloat16))


def test_a_bf16_export_keeps_the_biases_of_routers(tiny_flags, tmp_path, model_of):
    """They stay in fp32, as in published models: bf16 has 0.02 and 0.0201 as one number, and tokens change experts."""
    folder = RunFolder(tmp_path / "run")
    experts = {"model_type": "glm4_moe", "num_local_experts": 4, "n_shared_experts": 1, "router_bias_speed": 0.0123}
    assert main(["train", *tiny_flags(folder.root, ranks=1, max_steps=2, **experts)]) == 0
    path = consolidate(folder, ExportOptions(dtype="bf16"))
    (file,) = folder.hf.glob("*.safetensors")
    exported_weights = load_file(file)
    dtypes = {name: weight.dtype for name, weight in exported_weights.items()}
    biases = {name for name in dtypes if name.endswith("e_score_correction_bias")}
    assert len(biases) == model_of(path).config.num_hidden_layers
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == biases
    weights = dict(model_of(path).named_parameters())
    theirs = AutoModelForCausalLM.from_pretrained(folder.hf, dtype=torch.bfloat16).state_dict()
    for name in biases:
        assert weights[name].abs().max() > 0.01
        assert torch.equal(exported_weights[name], weights[name].detach())
        assert torch.equal(theirs[name], weights[name].detach())


@pytest.mark.slow
def test_the_moving_average_can_be_exported(tiny_flags, tmp_path):
    """With the largest ``ema_decay`` it stays as at the first step; no comparison with the trained weights."""
    folder, largest = RunFolder(tmp_path), math.nextafter(1, 0)
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1, ema_decay=largest, lr=0.1)]) == 0
    consolidate(folder, ExportOptions(ema=True))
    first = AutoModelForCausalLM.from_pretrained(folder.hf).state_dict()
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=3, ema_decay=largest, lr=0.1)]) == 0
    consolidate(folder, ExportOptions(ema=True))
    assert_equal(AutoModelForCausalLM.from_pretrained(folder.hf).state_dict(), first)
    assert evaluate(folder).trainer is None
    consolidate(folder)
    assert evaluate(folder).trainer.relative_difference < 1e-6
    trained = AutoModelForCausalLM.from_pretrained(folder.hf).state_dict()
    assert not torch.equal(trained["model.norm.weight"], first["model.norm.weight"])
    assert json.loads((folder.hf / "podwright.json").read_text())["ema"] is False


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name])


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({"model_type": "llama_v2"}, {"tensor_parallel": 2}),
        ({"model_type": "llama_v3", "rope_scaling_factor": 8, "tie_word_embeddings": 1}, {"tensor_parallel": 2}),
        ({"model_type": "llama_v3", "qk_norm": 1, "rms_norm_eps": 1e-6}, {}),
        ({"model_type": "mistral", "sliding_window": 16}, {"pipeline_parallel": 2}),
        ({"model_type": "mixtral", "num_local_experts": 4}, {"expert_parallel": 2}),
        (
            {"model_type": "glm4_moe", "num_local_experts": 4, "n_shared_experts": 1, "router_bias_speed": 0},
            {"expert_parallel": 2},
        ),
        ({"model_type": "qwen3_moe", "num_local_experts": 4, "qk_norm": 1}, {"expert_parallel": 2}),
    ],
)
@pytest.mark.slow
def test_every_family_goes_to_transformers_and_back(tiny_flags, tmp_path, model_of, call_ranks, options, layout):
    """Exported in several files, transformers gives our logits to 1e-5; two ranks start from them with our loss."""
    folder = RunFolder(tmp_path / "run")
    assert main(["train", *tiny_flags(folder.root, ranks=1, max_steps=1, **options)]) == 0
    path = consolidate(folder, ExportOptions(max_shard_gb=40e-6))
    theirs = AutoModelForCausalLM.from_pretrained(folder.hf)
    tokens = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=tokens).logits, model_of(path).eval()(tokens), atol=1e-5, rtol=0)
    new = {"init_from": folder.hf, "max_steps": 1, **STILL, **options, **layout}
    status, output = call_ranks(2, "train", *tiny_flags(tmp_path / "new", **new))
    assert status == 0, output
    before, after = (list(logged(item, "validation"))[-1]["loss"] for item in (folder, RunFolder(tmp_path / "new")))
    assert after == pytest.approx(before, abs=1e-5)
    assert_read_by_parts(step_folder.newest(tmp_path / "new" / "checkpoints"))


def assert_read_by_parts(path):
    """Parts of tensors, read from their places in the files of all ranks, are those that PyTorch reads."""
    weights = list(weights_of(path))
    whole = read(path, {weight.key for weight in weights})
    reader = TensorReader(path)
    for key, part in ((weight.key, weight.part) for weight in weights):
        box = tuple(slice(start, start + size) for start, size in zip(part.begin, part.shape, strict=True))
        assert torch.equal(reader.read(key, part.begin, part.shape), whole[key][box])


@pytest.mark.slow
def test_a_run_starts_from_weights_or_from_everything(tiny_flags, tmp_path, undisturbed, capsys):
    """From a checkpoint's weights the schedule is fresh; from all of it, step and optimizer go on, with fresh data.

    A replay of the first step has the losses of those weights.
    """
    last = list(logged(RunFolder(undisturbed), "validation"))[-1]["loss"]
    for state, first in (("weights", 1), ("all", 13)):
        run = RunFolder(tmp_path / state)
        source = {"init_from": undisturbed / "checkpoints", "init_state": state, "max_steps": first, **STILL}
        assert main(["train", *tiny_flags(run.root, ranks=1, **source, validation_freq=1)]) == 0
        (event,) = logged(run, "train")
        assert (event["step"], event["sequences"]) == (first, 8)
        assert list(logged(run, "validation"))[-1]["loss"] == pytest.approx(last, abs=1e-5)
        capsys.readouterr()
        assert main(["replay", f"--run-dir={run.root}", f"--step={first}", "--losses", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["weights_step"] == first - 1
        losses = [sequence["loss"] for sequence in again["sequences"]]
        assert sum(losses) / len(losses) == pytest.approx(event["loss"], abs=1e-4)
    moments = [
        read(step_folder.newest(tmp_path / state / "checkpoints"), ["optimizer.model.norm.weight.step"])
        for state in ("weights", "all")
    ]
    assert [float(each["optimizer.model.norm.weight.step"]) for each in moments] == [1, 13]


class Hub(BaseHTTPRequestHandler):
    """A hub of one model, ``someone/model``: lists its files, and gives each."""

    def __init__(self, folder, *args) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        """Answer with the model's facts or a file."""
        path, files = urlsplit(self.path).path, f"/someone/model/resolve/{'0' * 40}/"
        content, status = b"", 404
        if path.startswith("/api/models/someone/model/tree/"):
            listed = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40}
                for file in self.folder.iterdir()
            ]
            content, status = json.dumps(listed).encode(), 200
        elif path.startswith("/api/models/someone/model"):
            names = [{"rfilename": file.name} for file in self.folder.iterdir()]
            content, status = json.dumps({"id": "someone/model", "sha": "0" * 40, "siblings": names}).encode(), 200
        elif path.startswith(files):
            content, status = (self.folder / path.removeprefix(files)).read_bytes(), 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self):
        """The same without the content."""
        self.do_GET()

    def log_message(self, *_):
        """Stay silent."""


@pytest.fixture
def hub(exported):
    """The address of a hub that has the exported model."""
    consolidate(exported)  # another test exports the mean of several checkpoints
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, exported.hf)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_a_run_starts_from_a_model_of_the_hub(tiny_flags, tmp_path, exported, hub):
    """It has the weights that the folder has, and says where they are from; a replay of its first step has them too."""
    here = os.environ | {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    flags = tiny_flags(tmp_path / "run", ranks=1, max_steps=1, init_from="someone/model", **STILL)
    command = [sys.executable, "-m", "podwright_training", "train", *flags]
    done = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = list(logged(exported, "validation"))[-1]["loss"]
    assert list(logged(RunFolder(tmp_path / "run"), "validation"))[-1]["loss"] == pytest.approx(last, abs=1e-5)
    assert next(logged(RunFolder(tmp_path / "run"), "start"))["init_from"] == "someone/model"
    replay = ["replay", f"--run-dir={tmp_path / 'run'}", "--step=1", "--losses", "--json"]
    done = subprocess.run([*command[:3], *replay], env=here, capture_output=True, text=True, check=False)
    losses = [sequence["loss"] for sequence in json.loads(done.stdout)["sequences"]]
    (event,) = logged(RunFolder(tmp_path / "run"), "train")
    assert sum(losses) / len(losses) == pytest.approx(event["loss"], abs=1e-4)


def test_a_model_of_the_hub_that_cannot_be_had(tiny_flags, tmp_path, monkeypatch, capsys):
    """Without network, one line says how to bring it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["train", *tiny_flags(tmp_path / "run", ranks=1, max_steps=1, init_from="someone/other")]) == 2
    assert "run `hf download someone/other --local-dir FOLDER`" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_refused(tiny_flags, tmp_path, exported, capsys):
    """Preflight names what differs; tensors that are missing or too many are named when they are read."""
    consolidate(exported)
    flags = tiny_flags(tmp_path / "run", ranks=1, max_steps=1, init_from=exported.hf)
    wrong = ["--hidden-size=64", "--vocab-size=304", "--init-state=all"]
    assert main(["train", *flags, *wrong]) == 2
    printed = capsys.readouterr().err
    assert "hidden_size is 32 there, 64 here" in printed
    assert "vocab_size is 300 there, 304 here; podwright-train does not extend or cut a vocabulary" in printed
    assert "init_state all needs a checkpoint" in printed
    assert main(["train", *flags, "--model-type=mistral"]) == 2
    assert "a llama model there, a mistral model here" in capsys.readouterr().err
    assert main(["train", *flags, f"--init-from={tmp_path}"]) == 2
    assert f"init_from {tmp_path} has neither config.json nor a complete checkpoint" in capsys.readouterr().err
    shutil.copytree(exported.hf, tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    assert main(["train", *flags, f"--init-from={tmp_path / 'hf'}"]) == 2
    assert (
        "its tensors lack: model.norm.weight; it has tensors that the model lacks: "
        "model.layers.0.self_attn.q_proj.bias" in capsys.readouterr().err
    )


def test_weights_that_learned_another_rotation_are_refused(tmp_path, exported):
    """Preflight names both rotations and the option; one that was plain may be scaled for a longer context."""
    folder, model = shutil.copytree(exported.hf, tmp_path / "hf"), load_run(exported).model
    config = json.loads((folder / "config.json").read_text())
    llama3 = asdict(RopeScaling(factor=8.0)) | {"rope_type": "llama3"}
    refused = {
        "rope_type is linear there, default here": {"rope_type": "linear", "factor": 2.0},
        "rope_type is llama3 there, default here; set rope_scaling_factor 8": llama3,
        "partial_rotary_factor is 0.5 there, 1.0 here": {"partial_rotary_factor": 0.5},
    }
    for message, rotation in refused.items():
        there = {**config, "rope_parameters": config["rope_parameters"] | rotation}
        (folder / "config.json").write_text(json.dumps(there))
        assert HuggingFaceModel(folder).problems(model) == [f"init_from {folder}: {message}"]
    scaled = replace(model, rope_scaling=RopeScaling(factor=8.0))
    assert HuggingFaceModel(exported.hf).problems(scaled) == []
    assert model.differences(scaled) == ["rope_scaling_factor 8 there, no rope_scaling_factor here"]
    assert scaled.differences(model) == []
    assert len(scaled.differences(model, may_scale=False)) == 1


def test_a_run_without_a_moving_average_has_none_to_export(exported):
    """One line says which option keeps one."""
    with pytest.raises(UserError, match="has no moving average of the weights: it was trained without ema_decay"):
        consolidate(exported, ExportOptions(ema=True))


def test_a_missing_run_or_model_is_an_error(tmp_path, undisturbed, capsys):
    """One line says what to do first."""
    assert main(["consolidate", "--run-dir", str(tmp_path)]) == 2
    assert "training has not started there" in capsys.readouterr().err
    assert main(["generate", "--run-dir", str(tmp_path)]) == 2
    assert "training has not started there" in capsys.readouterr().err
    assert main(["evaluate", "--run-dir", str(undisturbed)]) == 2
    assert f"run `podwright-train consolidate --run-dir {undisturbed}` first" in capsys.readouterr().err


if __name__ == "__main__":
    export_until_killed(RunFolder(Path(sys.argv[1])))
