"""Tokens that other programs wrote are read as those programs read them."""

import json
import os
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from podwright_testing.token_files import write_llm_c, write_mds, write_megatron, write_numpy, write_raw
from podwright_training.__main__ import main
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import order, raw_tokens
from podwright_training.data.bad_data import BadRecordError, DataError
from podwright_training.data.mixture import Source, sources_of
from podwright_training.data.splits import find_split
from podwright_training.data.stream import PackedStream
from podwright_training.data.token_files import open_token_file
from podwright_training.data.token_rule import TokenRule

FILES = Path(__file__).parent / "token_files"
EXPECTED = json.loads((FILES / "expected.json").read_text())  # what the programs themselves read: see generate.py
TOKEN_DTYPES = {"olmo.npy": "uint32", "mds_bytes/shard.00000.mds": "int64"}
END = 0
DOCUMENTS = [[1 + number, *[500 + number] * (number % 4), END] for number in range(40)]
READ_WITH_MEGATRON = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
print(json.dumps([tokens.tolist() for tokens in IndexedDataset(sys.argv[1])]))
"""
WRITERS = {"megatron.bin": write_megatron, "llmc.bin": write_llm_c, "raw.bin": write_raw, "numpy.npy": write_numpy}


def rule_of(dtype="uint16", stored_end=END, end=END, vocabulary_size=1000):
    return TokenRule(dtype, stored_end, end, vocabulary_size)


def documents_in(path, rule, *, column="text"):
    """The documents of a file in its order."""
    size = path.stat().st_size
    reader = open_token_file(str(path), size, rule, column=column)
    return [block.document(index).tolist() for block in reader.read(0, size) for index in range(len(block))]


@pytest.fixture
def open_stream(word_tokenizer):
    """Opens a folder as a rank alone would; the tokenizer has the words w0 to w999, and its EOS token is 0."""

    def open_stream(folder, *, split="train", streams=1, shuffle=True, **options):
        source = Source(name="tokens", dataset=str(folder), **options)
        return PackedStream(
            [source], split=split, tokenizer=word_tokenizer, context_width=7, rank=0, world_size=1,
            local_batch_size=4, streams=streams, shuffle=shuffle,
        )  # fmt: skip

    return open_stream


@pytest.mark.parametrize("name", EXPECTED)
def test_documents_are_those_that_the_format_s_own_program_reads(name):
    """Each token of each document in its order; a document without the EOS token gets one."""
    documents = documents_in(FILES / name, rule_of(TOKEN_DTYPES.get(name)))
    if name.startswith("litdata"):  # litdata reads blocks of tokens, and no documents
        assert list(chain.from_iterable(documents)) == EXPECTED[name]
    else:
        ended = [document if not document or document[-1] == END else [*document, END] for document in EXPECTED[name]]
        assert documents == ended
    assert len(documents) == 24


def test_megatron_itself_reads_the_same():
    """The present version does too, if Megatron is installed."""
    if not find_spec("megatron"):
        pytest.skip("megatron-core is not installed")
    # In a process of its own: Megatron adds classes to those that torch.load permits in the whole process.
    words = [sys.executable, "-c", READ_WITH_MEGATRON, str(FILES / "megatron_uint16")]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.splitlines()[-1]) == documents_in(FILES / "megatron_uint16.bin", rule_of())


@pytest.mark.parametrize("dtype", ["<u2", "<i4", "<i8", "u1"])
@pytest.mark.parametrize("sentences", [1, 3])
def test_types_and_sentences_of_megatron(tmp_path, dtype, sentences):
    """A document is all sequences that its index names, of any type of whole numbers."""
    path = tmp_path / "a.bin"
    documents = [[token % 200 for token in document] for document in DOCUMENTS]
    write_megatron(path, documents, dtype, sentences=sentences)
    assert documents_in(path, rule_of()) == documents


@pytest.mark.parametrize(
    ("write", "dtype"), [(write_llm_c, "<u4"), (write_numpy, "<i8"), (write_numpy, ">u4"), (write_raw, "<u4")]
)
def test_types_of_plain_tokens(tmp_path, write, dtype):
    """A header names the type; without one, token_dtype does."""
    path = tmp_path / ("a.npy" if write is write_numpy else "a.bin")
    write(path, DOCUMENTS, dtype)
    assert documents_in(path, rule_of("uint32" if write is write_raw else None)) == DOCUMENTS


@pytest.mark.parametrize("kind", WRITERS)
def test_tokens_above_16_bits(tmp_path, kind):
    """A large vocabulary is read whole."""
    documents = [[70_000, 3, END], [128_000, END]]
    WRITERS[kind](tmp_path / kind, documents, "<i4" if "megatron" in kind else "<u4")
    assert documents_in(tmp_path / kind, rule_of("uint32", vocabulary_size=128_256)) == documents


def test_shards_whose_documents_begin_with_the_token(tmp_path):
    """Modded-nanogpt writes the token first, and cuts documents at the end of a shard: no token is lost or moved."""
    path = tmp_path / "fineweb_train_000001.bin"
    write_llm_c(path, [[7, 8], [END, 1, 2], [END, 3]])
    assert documents_in(path, rule_of()) == [[7, 8, END], [1, 2, END], [3, END]]


def test_another_token_ends_documents(tmp_path):
    """It is replaced by the EOS token, also inside samples that have several texts."""
    write_megatron(tmp_path / "a.bin", [[1, 500, 2, 500], [3]])
    write_raw(tmp_path / "b.bin", [[1, 500, 2, 500], [3]])
    rule = rule_of(stored_end=500, vocabulary_size=400)
    assert documents_in(tmp_path / "a.bin", rule) == [[1, END, 2, END], [3, END]]
    assert documents_in(tmp_path / "b.bin", rule) == [[1, END], [2, END], [3, END]]


def test_a_long_document_needs_no_memory(tmp_path, monkeypatch):
    """One without an end in the limit is broken, and the documents behind it are read."""
    monkeypatch.setattr(raw_tokens, "DOCUMENT_BYTES", 100)
    monkeypatch.setattr(raw_tokens, "PIECE_TOKENS", 7)
    path = tmp_path / "a.bin"
    write_raw(path, [[1] * 49 + [END], [2] * 60 + [END], [3, END]])
    (block,) = open_token_file(str(path), 226, rule_of(), column="").read(0, 110)
    assert (len(block), block.number(1)) == (2, "token 50")
    assert block.document(0).tolist() == [1] * 49 + [END]
    with pytest.raises(BadRecordError, match="no token 0, which ends a document, in 0 MiB: set token_end"):
        block.document(1)


def swap(folder):
    """An index of another file."""
    write_megatron(folder / "b.bin", DOCUMENTS[:9])
    shutil.move(folder / "b.idx", folder / "train.idx")
    (folder / "b.bin").unlink()


def cut(name, size):
    """A file that lacks its last bytes."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-size])


def megatron(folder, **options):
    write_megatron(folder / "train.bin", DOCUMENTS, **options)


@pytest.mark.parametrize(
    ("write", "damage", "message"),
    [
        (megatron, cut("train.bin", 2), r"train.bin has \d+ bytes, but train.idx describes \d+: the .bin is truncated"),
        (megatron, swap, r"or the .idx belongs to another .bin; copy both files again"),
        (megatron, cut("train.idx", 8), r"train.idx has \d+ bytes, but its header describes more: it is truncated"),
        (megatron, lambda folder: (folder / "train.idx").write_bytes(b"other"), "is not an index of Megatron"),
        (megatron, lambda folder: (folder / "train.idx").unlink(), "train.bin does not say which .*; set token_dtype"),
        (lambda folder: write_llm_c(folder / "train.bin", DOCUMENTS), cut("train.bin", 2),
         r"train.bin has \d+ tokens, but its header says \d+: it is truncated"),
        (lambda folder: write_llm_c(folder / "train.bin", DOCUMENTS), cut("train.bin", 1),
         r"train.bin has \d+ bytes of tokens, which is no multiple of the 2 bytes of uint16: it is truncated"),
        (lambda folder: write_numpy(folder / "train.npy", DOCUMENTS), cut("train.npy", 2), r"its header says \d+"),
        (lambda folder: np.save(folder / "train.npy", np.zeros((2, 3))), None, r"array of float64 with shape \(2, 3\)"),
        (lambda folder: shutil.copytree(FILES / "mds_bytes", folder / "train"), None,
         "column tokens has bytes and does not say which numbers they are; set token_dtype"),
        (lambda folder: shutil.copytree(FILES / "mds_uint16", folder / "train"), cut("train/shard.00000.mds", 1),
         "it is truncated, compressed or no file of MosaicML's streaming, MDS"),
        (lambda folder: shutil.copytree(FILES / "litdata", folder / "train"), cut("train/chunk-0-0.bin", 1),
         "it is truncated, compressed or no file of litdata"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path, open_stream, write, damage, message):
    """The run does not start, and the message says what to do."""
    write(tmp_path)
    if damage:
        damage(tmp_path)
    with pytest.raises(DataError, match=message):
        open_stream(tmp_path)


@pytest.mark.parametrize("kind", ["link", "folder"])
@pytest.mark.parametrize("name", ["a.idx", "index.json"])
def test_an_index_that_is_no_file_is_refused(tmp_path, open_stream, kind, name):
    """Without its index, the file would be read as plain tokens."""
    (tmp_path / "train").mkdir()
    path = tmp_path / "train" / ("a.bin" if name == "a.idx" else "chunk-0-0.bin")
    write_raw(path, DOCUMENTS)
    if kind == "link":
        path.with_name(name).symlink_to(tmp_path / "nowhere")
    else:
        path.with_name(name).mkdir()
    with pytest.raises(DataError, match=rf"{name}, the index of .*, is (a link to nothing|no regular file)"):
        open_stream(tmp_path, token_dtype="uint16")


def test_an_index_that_others_have_is_missed(tmp_path, open_stream):
    """A copy that was cut short has the tokens, and not the documents."""
    for name in ("a", "b", "c"):
        write_megatron(tmp_path / f"{name}.bin", DOCUMENTS)
    open_stream(tmp_path, token_dtype="uint16")
    (tmp_path / "b.idx").unlink()
    with pytest.raises(DataError, match=r"b\.bin has no b\.idx beside it, as c\.bin has: copy the index too"):
        open_stream(tmp_path, token_dtype="uint16")


@pytest.mark.parametrize("kind", WRITERS)
def test_tokens_of_another_vocabulary_are_refused(tmp_path, open_stream, kind):
    """Before the first step, with the document and the token."""
    WRITERS[kind](tmp_path / kind, [[1, END], [60_000, END]])
    with pytest.raises(DataError, match=rf"{kind}:(2|token 2): token 60000 is not among the 1000 ids of the tokenizer"):
        open_stream(tmp_path, token_dtype="uint16")


def test_a_wrong_type_is_noticed(tmp_path, open_stream):
    """Two numbers of 16 bits are a large one of 32 bits, and a file has an even number of bytes."""
    write_raw(tmp_path / "train.bin", DOCUMENTS)
    with pytest.raises(DataError, match=r"is not among the 1000 ids of the tokenizer: name .* and the token_dtype"):
        open_stream(tmp_path, token_dtype="uint32")
    (tmp_path / "train.bin").write_bytes(bytes(7))
    with pytest.raises(DataError, match=r"7 bytes of tokens, .* uint16: it is truncated, or token_dtype is wrong"):
        open_stream(tmp_path, token_dtype="uint16")


@pytest.mark.parametrize(
    ("dtype", "token_dtype", "other_dtype"),
    [
        ("<u4", "uint16", "uint32"), ("<u4", "uint8", "uint32"), ("<u2", "uint8", "uint16"),
        ("<i8", "int32", "int64"), ("<i8", "uint16", "int64"), ("<u8", "uint32", "int64"),
    ],
)  # fmt: skip
def test_a_type_of_half_the_width_is_noticed(tmp_path, open_stream, dtype, token_dtype, other_dtype):
    """A part of each number would be a token 0 that is in no text; the true type is read."""
    documents = [[number % 200 + 2, number % 90 + 5, END] for number in range(400)]
    write_raw(tmp_path / "train.bin", documents, dtype)
    with pytest.raises(DataError, match=rf"nearly every second number of type {token_dtype} .* to {other_dtype}$"):
        open_stream(tmp_path, token_dtype=token_dtype)
    open_stream(tmp_path, token_dtype=other_dtype).next_batch()


def test_documents_that_end_twice_are_refused(tmp_path, open_stream):
    """The tokens say which token ends a document, if it is not the tokenizer's; the user decides."""
    write_megatron(tmp_path / "train.bin", [[number, 900] for number in range(1, 21)])
    with pytest.raises(
        DataError, match=r"first 20 documents all end with token 900, but .* is 0: set token_end to 900"
    ):
        open_stream(tmp_path)
    rows = open_stream(tmp_path, token_end=900).next_batch().tokens_BT
    assert not (rows == 900).any()
    rows = open_stream(tmp_path, token_end=END).next_batch().tokens_BT
    assert (rows == 900).any()


def test_a_file_without_an_end_is_named(tmp_path, open_stream, caplog):
    """It is one document, which may be meant."""
    write_raw(tmp_path / "train.bin", [list(range(1, 300))])
    write_raw(tmp_path / "val.bin", [[5, END]])
    rows = open_stream(tmp_path, token_dtype="uint16").next_batch().tokens_BT
    assert rows.flatten().tolist()[:6] == [1, 2, 3, 4, 5, 6]
    assert "train.bin: no token 0 ends a document in it (token_end)" in caplog.text
    assert "val.bin" not in caplog.text


def test_questions_are_no_text(tmp_path, open_stream):
    """Of llm.c's files for evaluation, the name looks like one for training."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240522, 1, 3
    (tmp_path / "hellaswag_train.bin").write_bytes(header.tobytes())
    with pytest.raises(DataError, match="questions and answers for an evaluation, no text: remove it"):
        open_stream(tmp_path, token_dtype="uint16")


def test_token_files_beside_texts_are_left_out(tmp_path):
    """They are mostly of these texts; an index belongs to its file."""
    for folder, kinds in (("texts", ("a.bin", "b.npy", "train.jsonl")), ("tokens", ("a.bin", "b.npy"))):
        (tmp_path / folder).mkdir()
        for kind in (*kinds, "a.idx", "b.csv.gz", "c.idx"):
            (tmp_path / folder / kind).write_text("")
    texts, tokens = (find_split(str(tmp_path / name), None, "train") for name in ("texts", "tokens"))
    assert (texts.names, tokens.names) == (("train.jsonl",), ("a.bin", "b.npy"))
    assert texts.unread_files == (
        "a.bin, b.npy (tokens of another program, beside other data); c.idx (in no format of data)"
    )
    assert tokens.unread_files == "c.idx (in no format of data)"


@pytest.mark.parametrize("name", ["more", "linked"])
def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch, name):
    """Its files would be missing in the run without a word; hidden folders and those of a volume have none."""
    folder, scandir = tmp_path / "data", os.scandir
    for part in ("more", ".snapshot", "lost+found"):
        (folder / part).mkdir(parents=True)
    if name == "linked":
        (folder / "more").rmdir()
        (tmp_path / "secret").mkdir()
        (folder / "linked").symlink_to(tmp_path / "secret")
    write_megatron(folder / "a.bin", DOCUMENTS)
    unreadable = {str(folder / ".snapshot"), str(folder / "lost+found")}

    def guarded(path):
        if str(path) in unreadable:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert find_split(str(folder), None, "train").names == ("a.bin",)
    unreadable.add(str(folder / name))
    with pytest.raises(DataError, match=rf"cannot read \S*/{name}: Permission denied; make it readable, or move it"):
        find_split(str(folder), None, "train")


def test_an_index_of_fairseq_is_named(tmp_path, open_stream):
    """It begins as Megatron's does."""
    write_raw(tmp_path / "train.bin", DOCUMENTS)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, 8, len(DOCUMENTS))
    (tmp_path / "train.idx").write_bytes(header + bytes(12 * len(DOCUMENTS)))
    with pytest.raises(DataError, match=r"train\.idx is an index of fairseq's, which lists no documents"):
        open_stream(tmp_path)


def test_left_out_token_files_are_named(tmp_path, open_stream):
    """A JSON file beside them looks like data, and has no text."""
    write_megatron(tmp_path / "a_text_document.bin", DOCUMENTS)
    (tmp_path / "stats.json").write_text('{"documents": 40}')
    with pytest.raises(DataError, match=r"no column 'text' .*; left out: a_text_document\.bin .* move the others"):
        open_stream(tmp_path)


def test_a_shard_without_bytes_is_named(tmp_path, open_stream):
    """It has no header that would name its type, so no token_dtype helps."""
    write_llm_c(tmp_path / "train_0.bin", DOCUMENTS)
    (tmp_path / "train_1.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"train_1\.bin has no byte: remove it, or copy it again"):
        open_stream(tmp_path)


@pytest.mark.parametrize("name", ["mds_uint16", "litdata"])
def test_an_index_is_no_dataset(name):
    """``index.json`` looks like a JSON record."""
    split = find_split(str(FILES / name), None, "train")
    assert [Path(file).suffix for file in split.files] == [".mds" if name == "mds_uint16" else ".bin"]
    assert split.unread_files == ""


def test_compressed_shards_of_mds(tmp_path):
    """The message says how to decompress them."""
    for name in ("index.json", "shard.00000.mds.zstd"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match=r"decompress shards of MDS, such as with unzstd --rm \*\.mds\.zstd"):
        find_split(str(tmp_path), None, "train")


def test_a_resume_with_another_rule_is_refused(tmp_path, open_stream):
    """Other ends or another index would be other documents at the same place."""
    write_megatron(tmp_path / "train.bin", DOCUMENTS)
    stream = open_stream(tmp_path)
    stream.next_batch()
    state = json.loads(json.dumps(stream.state_dict()))
    assert open_stream(tmp_path).differences(state) == []
    assert open_stream(tmp_path, token_dtype="uint32").differences(state) == []  # Megatron's index names the type.
    (difference,) = open_stream(tmp_path, token_end=501).differences(state)
    assert "a run keeps its token_dtype, token_end and .idx files" in difference
    moved = tmp_path / "moved"
    moved.mkdir()
    write_megatron(moved / "train.bin", DOCUMENTS, sentences=2)
    (difference,) = open_stream(moved).differences(state)
    assert "token files of data source tokens are read otherwise" in difference


@pytest.mark.parametrize("change", ["middle", "second"])
def test_a_resume_with_another_index_is_refused(tmp_path, open_stream, change):
    """A change anywhere in the index of any file would be other documents at the same place."""
    documents = [[5, 6, 7, END]] * 40_000
    for number in range(3):
        write_megatron(tmp_path / f"train-{number}.bin", documents if number == 0 else [[5, 6], [7, END]] * 10)
    write_megatron(tmp_path / "val.bin", DOCUMENTS)
    stream = open_stream(tmp_path)
    stream.next_batch()
    state = json.loads(json.dumps(stream.state_dict()))
    if change == "second":
        write_megatron(tmp_path / "train-1.bin", [[5], [6, 7, END]] * 10)
    else:
        index = bytearray((tmp_path / "train-0.idx").read_bytes())
        begin = len(index) - 8 * 20_000
        first_sequences = np.frombuffer(index, "<i8", 100, begin) // 2 * 2
        index[begin : begin + 800] = first_sequences.tobytes()
        (tmp_path / "train-0.idx").write_bytes(index)
    (difference,) = open_stream(tmp_path).differences(state)
    assert "token files of data source tokens are read otherwise" in difference


@pytest.mark.parametrize("kind", ["jsonl", "mds"])
def test_a_resume_with_another_column_is_refused(tmp_path, open_stream, kind):
    """The files are the same, and the documents are others."""
    if kind == "jsonl":
        lines = [json.dumps({"text": "w1 w2", "title": "w3 w4"})] * 20
        for name in ("train", "validation"):
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    else:
        for name in ("train", "val"):
            write_mds(tmp_path / f"{name}.mds", DOCUMENTS, columns=("tokens", "title"))
    stream = open_stream(tmp_path)
    stream.next_batch()
    state = json.loads(json.dumps(stream.state_dict()))
    assert open_stream(tmp_path).differences(state) == []
    (difference,) = open_stream(tmp_path, text_column="title").differences(state)
    assert "(text_column) in the checkpoint, 'title' in this run; a run keeps its column" in difference
    del state["columns"]
    assert open_stream(tmp_path, text_column="title").differences(state) == []


@pytest.mark.parametrize("write", [write_megatron, write_mds])
def test_documents_without_tokens_are_left_out(tmp_path, open_stream, write):
    """Their checksum puts them in the share for validation, where they would be waited for without end."""
    name = "a.bin" if write is write_megatron else "a.mds"
    documents = [[number, END] for number in range(1, 21)]
    write(tmp_path / name, [*documents, []])
    with pytest.raises(DataError, match="has no document for validation"):
        open_stream(tmp_path, split="validation").next_batch()
    stream, tokens = open_stream(tmp_path, max_epochs=1), []
    while not stream.is_wholly_spent:
        batch = stream.next_batch()
        tokens += torch.cat([batch.tokens_BT[:, :1], batch.labels_BT], dim=1).flatten().tolist()
    assert sorted(token for token in tokens if token > 0) == list(range(1, 21))


def test_each_source_has_its_own_rule(tmp_path):
    """A mixture's file names type and end of a source; others have the run's."""
    path = tmp_path / "mixture.yaml"
    path.write_text("olmo: {dataset: /olmo, token_dtype: uint32, token_end: 50279}\nweb: {dataset: /web}\n")
    olmo, web = sources_of(TrainConfig(data_mixture=str(path), token_dtype="uint16"))
    assert (olmo.token_dtype, olmo.token_end, web.token_dtype, web.token_end) == ("uint32", 50279, "uint16", None)
    path.write_text("olmo: {dataset: /olmo, token_dtype: float, token_end: -1}\n")
    with pytest.raises(DataError) as error:
        sources_of(TrainConfig(data_mixture=str(path)))
    assert [line.split("olmo: ")[1] for line in str(error.value).splitlines()] == [
        "token_dtype: got 'float', need one of uint8, uint16, uint32, uint64, int32, int64",
        "token_end: got -1, need a whole number of at least 0",
    ]


def test_token_shards_of_token_files(tmp_path, word_tokenizer, capsys):
    """``tokenize`` converts them: each document once, with the share for validation held out."""
    word_tokenizer.save_pretrained(tmp_path / "tokenizer")
    documents = [[1 + number % 999, 1 + number // 999, END] for number in range(2000)]
    (tmp_path / "data").mkdir()
    write_raw(tmp_path / "data" / "a.bin", documents)
    flags = ["--dataset-config-name=none", f"--tokenizer={tmp_path / 'tokenizer'}", "--data-workers=1"]
    data = [f"--dataset={tmp_path / 'data'}", f"--output={tmp_path / 'out'}"]
    assert main(["tokenize", *data, *flags]) == 2
    assert "a.bin does not say which numbers it has" in capsys.readouterr().err
    assert main(["tokenize", *data, *flags, "--token-dtype=uint16"]) == 0
    assert "2,000 documents, 6,000 tokens" in capsys.readouterr().out
    shards = [load_file(path)["tokens"].reshape(-1, 3).tolist() for path in sorted((tmp_path / "out").iterdir())]
    assert sorted(chain.from_iterable(shards)) == sorted(documents)
    assert 0 < len(shards[1]) < 60


@pytest.mark.parametrize("name", ["megatron", "olmo", "mds_uint16", "litdata"])
def test_files_of_the_programs_train(tmp_path, open_stream, name):
    """The stream reads each document of the real files once in an epoch, and continues where it stopped."""
    for path in FILES.glob("olmo*" if name == "olmo" else "megatron_uint16*" if name == "megatron" else name):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    options = {"token_dtype": "uint32", "max_epochs": 1, "streams": 4}
    stream, rows = open_stream(tmp_path, **options), []
    while not stream.is_wholly_spent:
        batch = stream.next_batch()
        rows.append(torch.cat([batch.tokens_BT[:, :1], batch.labels_BT], dim=1))
        state = json.loads(json.dumps(stream.state_dict()))
        stream = open_stream(tmp_path, **options)
        stream.load_state_dict(state)
    tokens = [token for token in torch.cat(rows).flatten().tolist() if token > 0]
    names = {"megatron": "megatron_uint16.bin", "olmo": "olmo.npy"}
    expected = EXPECTED[next(key for key in EXPECTED if key.startswith(names.get(name, name)))]
    flat = expected if name == "litdata" else list(chain.from_iterable(expected))
    assert sorted(tokens) == sorted(token for token in flat if token)


@pytest.mark.parametrize("kind", [*WRITERS, "jsonl"])
def test_the_order_of_the_files(tmp_path, open_stream, monkeypatch, kind):
    """Without shuffling, a single stream reads the documents as they are stored, in each epoch and after a resume."""
    for name in ("LEAST_WINDOW_BYTES", "MOST_WINDOW_BYTES"):
        monkeypatch.setattr(order, name, 100)
    documents = [[number, END] for number in range(1, 600)]
    for part in (0, 1):
        if kind == "jsonl":
            lines = [json.dumps({"text": f"w{number}"}) for number, _ in documents[300 * part : 300 * part + 300]]
            (tmp_path / f"train-{part}.jsonl").write_text("\n".join(lines))
            (tmp_path / "validation.jsonl").write_text(lines[0])
        else:
            WRITERS[kind](tmp_path / f"train-{part}.{kind}", documents[300 * part : 300 * part + 300])
            WRITERS[kind](tmp_path / f"validation.{kind}", [[1, END]])
    options = {"token_dtype": "uint16", "shuffle": False}
    stream, tokens = open_stream(tmp_path, **options), []
    for _ in range(60):
        batch = stream.next_batch()
        tokens += torch.cat([batch.tokens_BT[:, :1], batch.labels_BT], dim=1).flatten().tolist()
        state = json.loads(json.dumps(stream.state_dict()))
        stream = open_stream(tmp_path, **options)
        stream.load_state_dict(state)
    twice = list(chain.from_iterable(documents * 2))
    assert tokens[: len(twice)] == twice[: len(tokens)]
    assert len(tokens) > len(twice) / 2
    (difference,) = open_stream(tmp_path, token_dtype="uint16").differences(state)
    assert "shuffle is False in the checkpoint, True in this run" in difference
