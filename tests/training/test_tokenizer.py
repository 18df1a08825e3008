"""A tokenizer is trained on a dataset, and measured on it."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from podwright_training.__main__ import main
from podwright_training.commands.tokenizer import count_tokens
from podwright_training.data import byte_level_bpe
from podwright_training.data.byte_level_bpe import train as train_tokenizer
from podwright_training.data.tokenizer import (
    Encoder,
    TextSize,
    load_tokenizer,
    save_tokenizer,
    token_bytes,
    vocabulary_size,
)

TEXTS = ["It's 12345 o'clock, and THEY'RE late.\n\n  Größe: 日本", "the node reads a file and then writes another file"]


def train(dataset, output, *flags):
    """Run the command and load what it wrote."""
    arguments = ("--dataset", dataset, "--output", output, "--vocab-size", 300, "--multiple", 64, *flags)
    assert main(["tokenizer", "train", *map(str, arguments)]) == 0
    return AutoTokenizer.from_pretrained(output)


@pytest.fixture(scope="module")
def trained(text_dataset, tmp_path_factory):
    """A tokenizer with Llama 3's words and one special token."""
    flags = ("--pattern", "llama3", "--special-tokens", "<|user|>")
    return train(text_dataset, tmp_path_factory.mktemp("tokenizer") / "llama3", *flags)


def test_the_vocabulary_is_filled_up_to_a_multiple(trained):
    """Reserved tokens follow the learned ones; every special token is one token, and skipped when decoding."""
    assert len(trained) == 320
    assert trained.eos_token_id == 1
    assert trained.convert_ids_to_tokens([0, 1, 2]) == ["<|begin_of_text|>", "<|end_of_text|>", "<|user|>"]
    assert trained.convert_ids_to_tokens(319) == "<|reserved_19|>"
    ids = trained("<|user|>the node<|end_of_text|>", add_special_tokens=False).input_ids
    assert (ids[0], ids[-1]) == (2, 1)
    assert trained.decode(ids, skip_special_tokens=True) == "the node"


@pytest.mark.parametrize("class_name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_tokenizer_of_no_models_class_is_the_one_of_auto_tokenizer(trained, class_name, tmp_path, monkeypatch):
    """It loads alike without AutoTokenizer, which decides where a model's config.json may name a class."""
    trained.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": class_name}))
    automatic = AutoTokenizer.from_pretrained(tmp_path)
    asked = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name, **_: asked.append(name) or automatic)
    loaded = load_tokenizer(str(tmp_path))
    assert asked == []
    assert type(loaded) is type(automatic)
    assert repr(loaded) == repr(automatic).replace(repr(tmp_path), repr(str(tmp_path)))
    assert loaded.backend_tokenizer.to_str() == automatic.backend_tokenizer.to_str()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    load_tokenizer(str(tmp_path))
    assert asked == [str(tmp_path)]


def test_words_are_cut_by_the_pattern(trained, text_dataset, tmp_path):
    """Llama 3's rule has digits in threes and contractions in capitals; GPT-2's has neither. Both restore any text."""
    gpt2 = train(text_dataset, tmp_path / "gpt2")
    words = {
        name: [word for word, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXTS[0])]
        for name, tokenizer in (("gpt2", gpt2), ("llama3", trained))
    }
    assert {"123", "45", "'RE"} <= set(words["llama3"])
    assert "Ġ12345" in words["gpt2"]
    for tokenizer in (gpt2, trained):
        for text in TEXTS:
            assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_the_same_text_gives_the_same_tokenizer(trained, text_dataset, tmp_path):
    """A second training writes the same bytes."""
    train(text_dataset, tmp_path / "again", "--pattern", "llama3", "--special-tokens", "<|user|>")
    first, second = (Path(folder) / "tokenizer.json" for folder in (trained.name_or_path, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def test_inspect(trained, text_dataset, capsys):
    """The figures of several tokenizers stand side by side, and are those of the text."""
    measured = count_tokens(str(trained.name_or_path), TEXTS)
    assert measured.text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert measured.tokens == sum(len(trained(text, add_special_tokens=False).input_ids) for text in TEXTS)
    assert measured.words == sum(len(text.split()) for text in TEXTS)
    assert measured.restored
    tokenizers = (trained.name_or_path, str(text_dataset / "tokenizer"))
    assert main(["tokenizer", "inspect", *tokenizers, "--dataset", str(text_dataset), "--documents", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(tokenizers)
    assert lines[1].split() == ["vocabulary", "320", "300"]
    assert lines[-1].split() == ["decodes", "to", "the", "same", "text", "yes", "yes"]


def test_tokens_are_counted_in_bytes(trained):
    """Tokens add up to the bytes of the text wherever it is cut, also within a character; special ones are none."""
    lengths = token_bytes(trained)
    for text in (*TEXTS, "気象庁は🌊を観測した<|user|>"):
        ids = trained(text, add_special_tokens=False).input_ids
        assert lengths[ids].sum() == len(text.removesuffix("<|user|>").encode())
    pieces = Tokenizer(models.BPE({"<0xE6>": 0, "\u2581\u6c17": 1, "a": 2, "b": 3}, [], byte_fallback=True))
    pieces.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert token_bytes(PreTrainedTokenizerFast(tokenizer_object=pieces)).tolist() == [1, 4, 1, 1]


@pytest.mark.parametrize("kind", ["prepend", "metaspace", "prefix", "none"])
def test_a_space_that_a_tokenizer_prepends_is_no_text(trained, kind):
    """The bytes of packed documents are those of their texts, also where each begins behind another one."""
    alphabet = sorted({f"<0x{byte:02X}>" for byte in range(256)} | {"\u2581", *"abc"})
    vocabulary = {token: number for number, token in enumerate(["<end>", *alphabet])}
    pieces = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    pieces.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    if kind == "prepend":
        pieces.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    elif kind == "metaspace":
        pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    elif kind == "prefix":
        pieces = Tokenizer.from_str(trained.backend_tokenizer.to_str())
        pieces.pre_tokenizer = ByteLevel(add_prefix_space=True)
    end = "<|end_of_text|>" if kind == "prefix" else "<end>"
    pieces.add_special_tokens([end])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token=end)
    size, texts = TextSize.of(tokenizer), ["ab c", "日a", "c"]
    assert size.prefix_bytes == (kind != "none")
    row = np.concatenate([[tokenizer.eos_token_id], *Encoder(tokenizer).encode(texts)]).astype(np.int64)
    assert size.count(row[:-1], row[1:]) == sum(len(text.encode()) for text in texts)


def test_a_text_that_quotes_a_special_token_is_text(trained):
    """Its tokens are those of its characters; only the end of the document is the end of a text."""
    (ids,) = Encoder(trained).encode(["a<|end_of_text|>b<|reserved_0|>"])
    assert ids.tolist().count(trained.eos_token_id) == 1
    assert trained.decode(ids[:-1], skip_special_tokens=True) == "a<|end_of_text|>b<|reserved_0|>"


CODE = ["def f(x):\n    return x.y + 12345\n\n# it's here", "a  b\tc\r\n d"]


def published(folder, tokenizer_class, **changes):
    """Write a tokenizer whose configuration names a class, with changes of tokenizer.json."""
    words = Sequence(
        [
            Split(Regex(r"\p{L}+|\p{N}{1,3}|\s+(?!\S)|[^\p{L}\p{N}]"), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = words, decoders.ByteLevel()
    special = ["<|endoftext|>", "<|end|>"]
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CODE * 20, trainer=trainer)
    folder.mkdir()
    content = {**json.loads(backend.to_str()), **changes}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = {"tokenizer_class": tokenizer_class}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_class_that_cannot_read_the_file_is_left_out(tmp_path):
    """tokenizer.json decides, whichever class its configuration names."""
    folder = published(tmp_path / "tokenizer", "T5Tokenizer")
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer(CODE[0])["input_ids"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(CODE[0]).ids


def test_an_embedding_has_a_row_for_the_largest_id():
    """Ids of a pruned vocabulary have gaps."""
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "world": 9}, unk_token="<unk>"))
    assert vocabulary_size(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")) == 10


@pytest.mark.parametrize("tokenizer_class", ["GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizerFast", "BloomTokenizer"])
def test_texts_are_cut_as_tokenizer_json_says(tmp_path, tokenizer_class):
    """Transformers rebuilds some classes with a rule of their own; ids and digest are those of the file."""
    folder = published(tmp_path / "tokenizer", tokenizer_class)
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(str(folder))
    tokenizer.eos_token = "<|end|>"  # noqa: S105 - no password
    encoder = Encoder(tokenizer)
    for text, ids in zip(CODE, encoder.encode(CODE), strict=True):
        assert ids[:-1].tolist() == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer(text, add_special_tokens=False).input_ids == ids[:-1].tolist()
        assert tokenizer.decode(ids[:-1], clean_up_tokenization_spaces=False) == text
    save_tokenizer(tokenizer, tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert Encoder(again).digest == Encoder(load_tokenizer(str(tmp_path / "saved"))).digest == encoder.digest


def test_a_class_says_which_token_ends_a_text(tmp_path):
    """GPT-2's published configuration names no special token: its class does."""
    tokenizer = load_tokenizer(str(published(tmp_path / "gpt2", "GPT2Tokenizer")))
    assert tokenizer.eos_token == "<|endoftext|>"  # noqa: S105 - no password
    assert Encoder(tokenizer).end == 0


def test_the_digest_is_of_the_whole_pipeline(tmp_path):
    """Another normalizer, rule of words, decoder or merge is another tokenizer; padding and truncation are not."""
    loaded = Encoder(load_tokenizer(str(published(tmp_path / "first", "GPT2Tokenizer"))))
    content = json.loads((tmp_path / "first" / "tokenizer.json").read_text())
    merges = {**content["model"], "merges": content["model"]["merges"][:-1]}
    changes = [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
        {"decoder": {"type": "Fuse"}},
        {"model": merges},
    ]
    digests = {
        Encoder(load_tokenizer(str(published(tmp_path / str(number), "GPT2Tokenizer", **change)))).digest
        for number, change in enumerate(changes)
    }
    assert len(digests | {loaded.digest}) == 1 + len(changes)
    cut = {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}}
    assert Encoder(load_tokenizer(str(published(tmp_path / "cut", "GPT2Tokenizer", **cut)))).digest == loaded.digest


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_one_line(text_dataset, tmp_path, capsys):
    """The line says why, and nothing is left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", tmp_path], check=True)
    try:
        output = str(tmp_path / "tok")
        assert main(["tokenizer", "train", "--dataset", str(text_dataset), "--output", output]) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.mark.parametrize(
    ("name", "why"), [("a.jsonl", "no document"), ("a.jsonl.zst", "empty"), ("a.jsonl.gz", "empty")]
)
def test_an_empty_file_is_named(tmp_path, capsys, name, why):
    """The line has the file, and nothing is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).touch()
    words = ("--dataset", str(tmp_path / "data"), "--dataset-config-name", "none", "--output", str(tmp_path / "new"))
    assert main(["tokenizer", "train", *words, "--vocab-size", "300"]) == 2
    assert f"{name}: {why}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_every_problem_is_named(text_dataset, tmp_path, capsys):
    """Numbers out of range and a folder that is there are one error; nothing is written."""
    flags = ("--dataset", text_dataset, "--output", tmp_path, "--vocab-size", 100, "--multiple", 0, "--documents", 0)
    assert main(["tokenizer", "train", *map(str, flags)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in errors] == ["vocab-size:", "multiple:", "documents:", "output"]
    assert main(["tokenizer", "train", "--dataset", str(tmp_path), "--output", str(tmp_path / "new")]) == 2
    assert "has no folder" in capsys.readouterr().err
    flags = ("--dataset", text_dataset, "--output", tmp_path / "new", "--special-tokens")
    assert main(["tokenizer", "train", *map(str, flags), "<|a|>", "<|a|>", "", "<|reserved_0|>"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split()[3] for line in errors] == ["<|a|>", "'',", "<|reserved_0|>"]
    assert not list(tmp_path.iterdir())


def test_words_of_a_tokenizer_that_adds_a_space(tmp_path):
    """SentencePiece's tokenizers put a space before each text, so a word is measured without one."""
    folder = tmp_path / "tokenizer"
    pieces = [("<end>", 0.0), *((piece, -1.0) for piece in ("\u2581the", "\u2581sea", "\u2581", *"theas"))]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    counts = count_tokens(str(folder), ["the sea sa"])
    assert (counts.words, counts.whole_words) == (3, 2)
    assert counts.restored


def test_text_without_spaces_is_limited(tmp_path, monkeypatch, caplog):
    """Different long words beyond the limit are left out and counted; short and known ones still are learned from."""
    monkeypatch.setattr(byte_level_bpe, "LONG_WORDS_BYTES", 40)

    def texts():
        yield "一二三四五六七八九十"
        yield "words 天地玄黄宇宙洪荒日月 and 一二三四五六七八九十 more"

    bounded = byte_level_bpe._LongWords().bounded
    seen = [bounded(text) for text in texts()]
    assert seen == ["一二三四五六七八九十", "words   and 一二三四五六七八九十 more"]
    train_tokenizer(texts(), tmp_path / "tokenizer", vocab_size=300)
    assert "0.0 MB of further such text were not used" in caplog.text
    assert bounded("x" * 1001) == " x"
    monkeypatch.setattr(byte_level_bpe, "LONG_WORDS_BYTES", 2000)
    assert byte_level_bpe._LongWords().bounded("x" * 1001) == "x" * 1000 + "\nx"
