"""Documents begin with the BOS token if ``add_bos`` says so, and results begin and end as training did."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from podwright_training import transformers_model
from podwright_training.__main__ import main
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError
from podwright_training.data.stream import open_stream
from podwright_training.data.tokenizer import (
    Encoder,
    TextSize,
    generation_token_ids,
    load_tokenizer,
    save_as_trained,
)
from podwright_training.errors import UserError
from podwright_training.harness import run_tasks
from podwright_training.loop import samples
from podwright_training.run_folder import ORIGIN
from podwright_training.transformers_model import LoadedModel

BOS, EOS = 0, 1
LLAMA_3 = processors.Sequence(
    [
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", BOS)]),
    ]
)
BERT = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
PLAIN = processors.TemplateProcessing("$A", special_tokens=[])


def words(*, post_processor=None, bos_token="<bos>"):  # noqa: S107 - no password
    """A tokenizer of 40 words, whose BOS token is 0 and whose EOS token is 1."""
    vocabulary = {"<bos>": BOS, "<eos>": EOS, **{f"w{number}": number for number in range(2, 42)}}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post_processor:
        model.post_processor = post_processor
    return PreTrainedTokenizerFast(tokenizer_object=model, bos_token=bos_token, eos_token="<eos>")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Forty documents of two words for training, the first ten for validation, and a tokenizer, in this folder."""
    monkeypatch.chdir(tmp_path)
    words().save_pretrained("tokenizer")
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": f"w{number} w{number}"}) for number in range(2, 42)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "validation.jsonl").write_text("\n".join(lines[:10]))
    return folder


def config(dataset, **options):
    """A run that reads the dataset in one stream."""
    return TrainConfig(
        dataset=str(dataset), dataset_config_name=None, tokenizer="tokenizer", data_streams=1, data_workers=0,
        max_context_width=9, **options,
    )  # fmt: skip


def opened(run, split="train"):
    """The stream of a split, on one rank."""
    return open_stream(run, split=split, tokenizer=run.tokenizer, rank=0, world_size=1, local_batch_size=4)


def tokens(run, split="train"):
    """The packed tokens of the first sequences of a split."""
    batch = opened(run, split).next_batch()
    return np.concatenate([batch.tokens_BT.numpy(), batch.labels_BT.numpy()[:, -1:]], axis=1).flatten().tolist()


def tokenize(output, *flags):
    """Convert the dataset to token shards."""
    fixed = ("--dataset-config-name=none", "--tokenizer=tokenizer", "--data-workers=1")
    return main(["tokenize", "--dataset=texts", f"--output={output}", *fixed, *flags])


def test_the_digest_without_bos_is_that_of_earlier_versions():
    """Token shards and checkpoints of earlier versions stay valid."""
    encoder = Encoder(words())
    assert (encoder.digest, encoder.earlier_digest) == ("4124a12298259a92", "e58c3e5a13d1a4d2")


def test_bos_is_in_the_digest():
    """Documents with BOS are other documents, and each setting knows the digest of the other."""
    tokenizer = words()
    plain, begun = Encoder(tokenizer), Encoder(tokenizer, add_bos=True)
    assert [ids.tolist() for ids in begun.encode(["w2 w3", ""])] == [[BOS, 2, 3, EOS], [BOS, EOS]]
    assert [ids.tolist() for ids in plain.encode(["w2 w3", ""])] == [[2, 3, EOS], [EOS]]
    assert len({plain.digest, begun.digest, plain.earlier_digest, begun.earlier_digest}) == 4
    assert (plain.toggled_digest, begun.toggled_digest) == (begun.digest, plain.digest)


@pytest.mark.parametrize(("bos_token", "reason"), [(None, "has no BOS token"), ("<eos>", "is its EOS token, <eos>")])
def test_a_tokenizer_without_a_bos_token_is_refused(bos_token, reason):
    """One line says what to do."""
    with pytest.raises(DataError, match=f"add_bos: .*{reason}.*: leave add_bos out") as caught:
        Encoder(words(bos_token=bos_token), add_bos=True)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("split", ["train", "validation"])
def test_each_document_begins_with_bos(dataset, split):
    """Training and validation read the same documents as without BOS, each behind it."""
    begun, plain = tokens(config(dataset, add_bos=True), split), tokens(config(dataset), split)
    assert begun[0] == BOS
    assert all(following == BOS for token, following in pairwise(begun) if token == EOS)
    text = [token for token in begun if token != BOS]
    assert text == plain[: len(text)]
    assert BOS not in plain


def test_token_shards_have_the_same_documents_as_texts(dataset, capsys):
    """The command that ``tokenize`` prints trains with BOS too."""
    assert tokenize("tokens", "--add-bos") == 0
    assert "--add-bos --run-dir" in capsys.readouterr().out
    (shard,) = dataset.parent.glob("tokens/train*.safetensors")
    documents = [[BOS, number, number, EOS] for number in range(2, 42)]
    assert sorted(load_file(shard)["tokens"].reshape(-1, 4).tolist()) == documents
    packed = tokens(config("tokens", add_bos=True))
    assert all(packed[begin : begin + 4] in documents for begin in range(0, len(packed), 4))


@pytest.mark.parametrize(("flags", "message"), [
    ((), "holds tokens without BOS, but this run is with add_bos: set add_bos to false, or tokenize again"),
    (("--add-bos",), "holds tokens with BOS, but this run is without add_bos: set add_bos to true, or tokenize again"),
])  # fmt: skip
@pytest.mark.usefixtures("dataset")
def test_token_shards_of_the_other_setting_are_refused(flags, message):
    """The line names the option, not only two digests."""
    assert tokenize("tokens", *flags) == 0
    with pytest.raises(DataError, match=message):
        opened(config("tokens", add_bos=not flags))


def test_an_interrupted_conversion_keeps_its_setting(dataset, capsys):
    """A work folder without BOS does not continue with it."""
    (dataset.parent / "tokens.partial").mkdir()
    encoder = Encoder(load_tokenizer("tokenizer"))
    begun = {"dataset": "texts", "dataset_config_name": None, "tokenizer_digest": encoder.digest}
    (dataset.parent / "tokens.partial" / "begun.json").write_text(json.dumps(begun))
    assert tokenize("tokens", "--add-bos") == 2
    assert "add_bos None there, True here" in capsys.readouterr().err


def test_a_run_keeps_the_beginning_of_its_documents(dataset):
    """A resume with the other setting is refused in one line; checkpoints of earlier versions have no BOS."""
    plain, begun = opened(config(dataset)), opened(config(dataset, add_bos=True))
    state = plain.state_dict()
    assert begun.differences(state) == [
        "add_bos is False in the checkpoint, True in this run: a run keeps the beginning of its documents"
    ]
    del state["add_bos"]
    assert plain.differences(state) == []
    assert len(begun.differences(state)) == 1


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("post_processor", [None, PLAIN, LLAMA_3, BERT])
def test_an_exported_tokenizer_begins_texts_as_training_did(tmp_path, post_processor, add_bos):
    """Transformers gives the ids of training, and the digest stays that of the tokenizer that was trained with."""
    tokenizer = words(post_processor=post_processor)
    save_as_trained(tokenizer, tmp_path / "first", add_bos=add_bos)
    save_as_trained(load_tokenizer(str(tmp_path / "first")), tmp_path / "second", add_bos=add_bos)
    encoder = Encoder(tokenizer, add_bos=add_bos)
    (document,) = encoder.encode(["w2 w3"])
    for folder in (tmp_path / "first", tmp_path / "second"):
        assert AutoTokenizer.from_pretrained(folder)("w2 w3")["input_ids"] == document[:-1].tolist()
        assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("w2 w3").ids == document[:-1].tolist()
        assert Encoder(load_tokenizer(str(folder)), add_bos=add_bos).digest == encoder.digest
        assert Encoder(AutoTokenizer.from_pretrained(folder), add_bos=add_bos).digest == encoder.digest
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert (settings["add_bos_token"], settings["add_eos_token"]) == (add_bos, False)  # as llama.cpp reads them
    assert generation_token_ids(tokenizer, add_bos=add_bos)["bos_token_id"] == (BOS if add_bos else EOS)


def test_a_tokenizer_that_already_begins_so_is_exported_unchanged(tmp_path):
    """Its file is the one that was trained with."""
    tokenizer = words(post_processor=LLAMA_3)
    save_as_trained(tokenizer, tmp_path, add_bos=True)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    assert written == json.loads(tokenizer.backend_tokenizer.to_str())


def test_prompts_begin_with_bos(tmp_path):
    """Those of ``generate`` and of the samples during training; an empty one is BOS alone."""
    tokenizer = words()
    loaded = LoadedModel(None, tokenizer, is_own=True, add_bos=True)
    assert (loaded.encode("w2"), loaded.encode("")) == ([BOS, 2], [BOS])
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("w2 w3 w4 w5\n")
    run = replace(config("texts", add_bos=True), sample_prompts=str(prompts), sample_tokens=5)
    (problem,) = samples.problems(run, tokenizer)
    assert "a text has 5 tokens, need at most 4" in problem
    assert list(samples.problems(replace(run, add_bos=False), tokenizer)) == []


def test_an_export_whose_tokenizer_has_lost_its_bos_token_is_refused(tmp_path, monkeypatch):
    """Texts cannot begin as in training."""
    words(bos_token=None).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / ORIGIN).write_text('{"add_bos": true}')
    monkeypatch.setattr(transformers_model, "_of_folder", lambda *_: torch.nn.Identity())
    with pytest.raises(UserError, match="this tokenizer has no BOS token"):
        transformers_model.load_model(tmp_path, device="cpu")


def test_the_harness_begins_texts_with_bos(tmp_path):
    """An export says in its record whether training did; the prefix is the end of the text before, as in training."""
    program = tmp_path / "harness"
    program.write_text('#!/bin/sh\necho "$4"; exit 1\n')
    program.chmod(0o755)
    folder = tmp_path / "hf"
    words().save_pretrained(folder)
    for record, first_token in (({}, (False, EOS)), ({"add_bos": True}, (True, EOS))):
        (folder / ORIGIN).write_text(json.dumps(record))
        with pytest.raises(UserError) as caught:
            run_tasks(folder, ["a"], program=str(program), include_path=None, device="cpu", dtype="float32")
        arguments = json.loads(str(caught.value).splitlines()[-1])
        assert (arguments["add_bos_token"], arguments["prefix_token_id"]) == first_token


@pytest.mark.parametrize("add_bos", [False, True])
def test_bytes_of_text_are_counted_behind_bos(add_bos):
    """The space that a tokenizer adds in front of each text is no text, with and without BOS."""
    vocabulary = {"<bos>": BOS, "<eos>": EOS, "\u2581sea": 2, "\u2581a": 3}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    model.add_special_tokens(["<bos>", "<eos>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<bos>", eos_token="<eos>")
    documents = np.concatenate(list(Encoder(tokenizer, add_bos=add_bos).encode(["sea sea", "a"]))).astype(np.int64)
    packed = np.concatenate([[EOS], documents])
    assert TextSize.of(tokenizer).count(packed[:-1], packed[1:]) == len("sea sea") + len("a")


@pytest.mark.slow
def test_a_run_with_bos_from_training_to_its_evaluation(text_dataset, tiny_flags, tmp_path, capsys):
    """The export begins texts with BOS, and its perplexity is the one that the trainer measured."""
    folder = shutil.copytree(text_dataset / "tokenizer", tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(5)
    tokenizer.save_pretrained(folder)
    flags = tiny_flags(tmp_path / "run", ranks=1, tokenizer=folder, max_steps=2, validation_batches=1, add_bos=1)
    assert main(["train", *flags]) == 0
    assert main(["consolidate", "--run-dir", str(tmp_path / "run")]) == 0
    exported = AutoTokenizer.from_pretrained(tmp_path / "run" / "hf")
    assert exported("the node").input_ids == [5, *tokenizer("the node", add_special_tokens=False).input_ids]
    generation = json.loads((tmp_path / "run" / "hf" / "generation_config.json").read_text())
    assert generation["bos_token_id"] == 5
    capsys.readouterr()
    assert main(["evaluate", "--run-dir", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relative_difference"] < 1e-5
