"""Documents are read from formats, splits, stores and mixtures; some may be broken."""

import gzip
import io
import json
from argparse import ArgumentParser
from pathlib import Path

import boto3
import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from moto.server import ThreadedMotoServer
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from podwright_training.__main__ import main
from podwright_training.commands import tokenize
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import formats, remote
from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError
from podwright_training.data.formats import read_blocks
from podwright_training.data.mixture import Source, sources_of, validation_sources_of
from podwright_training.data.splits import find_split
from podwright_training.data.stream import PackedStream
from podwright_training.data.token_shards import write_token_shard
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.spelling import as_flag

TEXTS = [" ".join([f"w{number}"] * (1 + number % 5)) for number in range(1, 61)]


def lines(texts=TEXTS):
    """Records as JSON lines."""
    return "".join(json.dumps({"text": text, "url": ""}) + "\n" for text in texts)


def write_parquet(folder):
    pq.write_table(pa.table({"url": [""] * len(TEXTS), "text": TEXTS}), folder / "train.parquet", row_group_size=25)


def write_arrow_file(folder):
    table = pa.table({"text": TEXTS})
    with pa.OSFile(str(folder / "train.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)


def zstd(text):
    """The text compressed, as files of ``.zst`` are."""
    return pa.compress(text.encode(), "zstd", asbytes=True)


def save_by_datasets(folder):
    """Save the texts as the library datasets does."""
    import datasets

    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder / "train")


WRITERS = {
    "jsonl": lambda folder: (folder / "train.jsonl").write_text(lines()),
    "jsonl.gz": lambda folder: (folder / "train.jsonl.gz").write_bytes(gzip.compress(lines().encode())),
    "jsonl.zst": lambda folder: (folder / "train.jsonl.zst").write_bytes(zstd(lines())),
    "json": lambda folder: (folder / "train.json").write_text(lines().rstrip("\n")),
    "parquet": write_parquet,
    "arrow file": write_arrow_file,
    "saved by datasets": save_by_datasets,
}


@pytest.fixture(scope="module", params=WRITERS)
def folder(request, tmp_path_factory):
    """The texts in one format."""
    folder = tmp_path_factory.mktemp("format")
    WRITERS[request.param](folder)
    return folder


@pytest.fixture
def open_stream(word_tokenizer):
    """Opens a folder as a rank alone would."""

    def open_stream(folder, *, text_column="text", streams=1, **options):
        source = Source(name="texts", dataset=str(folder), text_column=text_column)
        settings = {"split": "train", "tokenizer": word_tokenizer, "context_width": 7} | options
        return PackedStream([source], rank=0, world_size=1, local_batch_size=4, streams=streams, **settings)

    return open_stream


def tokens_of(stream, batches=40):
    """All tokens of some batches."""
    return torch.cat([stream.next_batch().tokens_BT for _ in range(batches)])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 documents."""
    monkeypatch.setattr(formats, "BLOCK_DOCUMENTS", 8)


def contents(path, start=0):
    """Place and content of the documents of each block."""
    blocks = read_blocks(path, column="text", start=start)
    return [
        [(block.first_document + index, str(block.document(index))) for index in range(len(block))] for block in blocks
    ]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_every_format(folder):
    """Blocks hold every document once and in place, and reading can begin with any of them."""
    (path,) = find_split(str(folder), None, "train").files
    blocks = contents(path)
    assert [document for block in blocks for document in block] == list(enumerate(TEXTS))
    assert max(map(len, blocks)) == 8
    assert [contents(path, start) for start in range(len(blocks) + 1)] == [
        blocks[start:] for start in range(len(blocks) + 1)
    ]


@pytest.mark.parametrize("folder", ["jsonl.gz", "parquet"], indirect=True)
def test_token_shards(folder, word_tokenizer, open_stream, tmp_path, capsys):
    """Token shards of any format give documents as the text does, to both splits, and know their tokenizer."""
    word_tokenizer.save_pretrained(tmp_path / "tokenizer")
    parser = ArgumentParser()
    tokenize.add_arguments(parser)
    output = tmp_path / "tokens"
    flags = {"dataset": folder, "dataset_config_name": "none", "tokenizer": tmp_path / "tokenizer", "output": output}
    args = parser.parse_args([as_flag(name, value) for name, value in (flags | {"data_workers": 1}).items()])
    assert tokenize.run(args) == 0
    assert "60 documents, " in capsys.readouterr().out
    assert sorted(path.name for path in output.iterdir()) == [
        "train.00000-of-00001.safetensors", "validation.00000-of-00001.safetensors",
    ]  # fmt: skip
    (path,) = find_split(str(output), None, "train").files
    held_out = find_split(str(folder), None, "train")
    expected = sorted([int(word[1:]) for word in text.split()] + [0] for text in TEXTS if held_out.has(text))
    (block,) = read_blocks(path, column="")
    assert sorted(block.document(index).tolist() for index in range(len(block))) == expected
    assert block.document(0).dtype == "uint16"
    assert set(tokens_of(open_stream(output)).flatten().tolist()) == {token for each in expected for token in each}
    other = Tokenizer(models.WordLevel({"<end>": 0, "other": 1}, unk_token="<end>"))
    with pytest.raises(DataError, match="holds tokens of another tokenizer"):
        open_stream(output, tokenizer=PreTrainedTokenizerFast(tokenizer_object=other, eos_token="<end>"))
    with pytest.raises(DataError, match="exists: remove it"):
        tokenize.run(args)


@pytest.mark.slow
def test_a_broken_record_counts_once(word_tokenizer, tmp_path, capsys):
    """Both splits read the files of a dataset that has no files for validation."""
    word_tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "data").mkdir()
    for number in range(3):
        records = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
        (tmp_path / "data" / f"{number}.jsonl").write_text(f"{records}broken\n")
    flags = ["--dataset-config-name=none", "--data-workers=1", "--max-bad-records=1", "--json"]
    places = [f"--{name}={tmp_path / folder}" for name, folder in (("dataset", "data"), ("output", "tokens"))]
    assert main(["tokenize", *places, f"--tokenizer={tmp_path / 'tokenizer'}", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["bad_records"] == 3


def test_changed_tokens_are_found(tmp_path):
    """Any changed byte of a token shard's documents or offsets is an error of the shard or of its documents."""
    path = tmp_path / "train.safetensors"
    documents = [np.arange(number, number + 5, dtype=np.uint32) for number in range(8)]
    write_token_shard(path, documents, tokenizer="t")
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in range(header, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        (block,) = read_blocks(str(path), column="")
        broken = 0
        for index, document in enumerate(documents):
            try:
                assert block.document(index).tolist() == document.tolist()
            except BadRecordError:
                broken += 1
        assert broken >= 1


def test_token_shards_of_an_earlier_version_are_refused(tmp_path):
    """Tokens that cut documents which quote a special token are made again."""
    path = tmp_path / "train.safetensors"
    save_file({"tokens": np.arange(3, dtype=np.uint16), "offsets": np.array([0, 1, 3])}, path, {"tokenizer": "t"})
    with pytest.raises(DataError, match=r"earlier podwright.*run `podwright-train tokenize`"):
        next(read_blocks(str(path), column=""))


def test_broken_records_are_named_and_skipped(tmp_path, open_stream, caplog):
    """A record that is no JSON, too deep or has no whole text is logged with its place and left out."""
    path = tmp_path / "a.jsonl"
    deep, half = f'{{"text": "w", "more": {"[" * 100_000}{"]" * 100_000}}}', '{"text": "w3 \\ud83d"}'
    path.write_text(lines(["w1"]) + f'{{"text": "w\n{{}}\n[]\n{{"text": 3}}\n{deep}\n{half}\n' + lines(["w2"]))
    stream = open_stream(path.parent)
    assert set(tokens_of(stream).flatten().tolist()) == {0, 1, 2}
    assert sorted(record.getMessage().split(" ")[0] for record in caplog.records) == [
        f"{path}:{n}:" for n in (2, 3, 4, 5, 6, 7)
    ]
    assert stream.faults.count("record") == 6


def test_blank_lines_are_no_records(tmp_path, open_stream, caplog):
    """They are not counted, and what is broken keeps the number of its line."""
    text = "\n" + lines(["w1"]) + "\n \n\r\n" + lines(["w2"]) + "\nx\n"
    (tmp_path / "a.jsonl").write_text(text)
    stream = open_stream(tmp_path)
    assert set(tokens_of(stream).flatten().tolist()) == {0, 1, 2}
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == [f"{tmp_path}/a.jsonl:8:"]


def test_linked_folders_are_read(tmp_path):
    """Once each, though a link leads back."""
    (tmp_path / "data").mkdir()
    (tmp_path / "far").mkdir()
    WRITERS["jsonl"](tmp_path / "far")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "up").symlink_to("..")  # what lies there is of others
    (tmp_path / "data" / "here").symlink_to(".")
    assert find_split(str(tmp_path / "data"), None, "train").names == ("linked/train.jsonl",)


def test_too_many_broken_records(tmp_path, open_stream):
    """More than the limit stop the run, with the last one's place."""
    (tmp_path / "a.jsonl").write_text(lines(["w1"]) + "x\n" * 3)
    assert len(tokens_of(open_stream(tmp_path, max_bad_records=3))) == 160
    with pytest.raises(
        DataError, match=r"more than 2 broken records \(max_bad_records\), the last one .*a.jsonl:\d: not"
    ):
        tokens_of(open_stream(tmp_path, max_bad_records=2))


@pytest.mark.parametrize("rest", [b"garbage", None])
def test_zstd_is_read_up_to_its_damage(tmp_path, rest):
    """All but the last few documents before garbage or the end are there; an empty file is named."""
    path, whole = tmp_path / "a.jsonl.zst", zstd(lines([f"w{number}" for number in range(50_000)]))
    path.write_bytes(whole + rest if rest else b"")
    blocks = []
    with pytest.raises(BadShardError, match="truncated or damaged" if rest else "empty: it has no byte"):
        blocks.extend(read_blocks(str(path), column="text"))
    count = sum(map(len, blocks))
    assert count > 49_000 if rest else count == 0


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet", "arrow file", "saved by datasets"])
def test_broken_shard(tmp_path, open_stream, kind, caplog):
    """A truncated shard is used up to the cut, the rest skipped, up to the limit."""
    WRITERS[kind](tmp_path)
    (path,) = (path for path in tmp_path.rglob("train*") if path.is_file()) if "saved" not in kind else (
        tmp_path / "train" / "data-00000-of-00001.arrow",
    )  # fmt: skip
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    (tmp_path / "train.1.jsonl").write_text(lines(["w900"]))
    stream = open_stream(tmp_path)
    assert 900 in tokens_of(stream)
    assert f"{path}: truncated or damaged" in caplog.text
    assert stream.faults.count("shard") == 1
    with pytest.raises(DataError, match=r"more than 0 broken shards \(max_bad_shards\), the last one .*train"):
        tokens_of(open_stream(tmp_path, max_bad_shards=0))


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_truncated_shard_is_not_called_too_small(tmp_path, open_stream, kind):
    """The message names the truncated shard that leaves a stream without documents."""
    WRITERS[kind](tmp_path)
    (path,) = tmp_path.glob("train*")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"has no intact document .* 1 broken shards .*train\S*: truncated or damaged"):
        open_stream(tmp_path).next_batch()


def test_vanished_shard(tmp_path, open_stream):
    """A shard that disappears after the start is named: a file system that is gone must not pass for broken data."""
    WRITERS["jsonl"](tmp_path)
    stream = open_stream(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"cannot read \S*train\.jsonl: No such file"):
        stream.next_batch()


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow file"])
def test_no_such_column(tmp_path, open_stream, kind):
    """A column that is not there is named together with those that are, before the first batch."""
    WRITERS[kind](tmp_path)
    with pytest.raises(DataError, match=r"no column 'body' \(text_column\); columns: .*text"):
        open_stream(tmp_path, text_column="body")


def test_column_without_text(tmp_path, open_stream):
    """A column of numbers is refused."""
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column 'text' .* has type int64, not text"):
        open_stream(tmp_path)


def test_fewer_documents_than_streams(tmp_path, open_stream):
    """Streams take turns with the documents; with none at all it is an error, not an endless search."""
    (tmp_path / "a.jsonl").write_text(lines(["w1"]))
    assert set(tokens_of(open_stream(tmp_path, streams=2)).flatten().tolist()) == {0, 1}
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(
        DataError, match=r"data source texts has no document .* validation is held out|for training in 1"
    ):
        open_stream(tmp_path, streams=2).next_batch()


def test_splits_by_name(tmp_path):
    """Files belong to the split that their name or folder says; others' words do not count."""
    names = [
        "data/train-00000.parquet",
        "data/validation-00000.parquet",
        "test/0.jsonl",
        "val/x.jsonl.gz",
        "state.json",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_split(str(tmp_path), None, "train").names == ("data/train-00000.parquet",)
    assert find_split(str(tmp_path), None, "validation").names == ("data/validation-00000.parquet", "val/x.jsonl.gz")
    assert find_split(str(tmp_path), "data", "train").held_out is None


def test_files_that_are_left_out_are_named(tmp_path, open_stream):
    """Those of no split, of tests, of no format, and caches of datasets are named with the reason; others are not."""
    for name in ("train-0.jsonl", "train-1.jsonl", "books.jsonl", "test.jsonl", "validation.jsonl"):
        (tmp_path / name).write_text(lines(["w1", "w2"]))
    for name in ("README.md", "cache-1a2b3c4d5e6f7a8b.arrow", "cache-1a2b_00000_of_00002.arrow", "dataset_info.json"):
        (tmp_path / name).touch()
    (choice,) = open_stream(tmp_path, streams=1).choices()
    assert (choice["split"], choice["files"], choice["held_out"]) == ("train", 2, None)
    assert choice["unread_files"] == (
        "README.md (in no format of data); "
        "cache-1a2b3c4d5e6f7a8b.arrow, cache-1a2b_00000_of_00002.arrow (a cache of the library datasets); "
        "dataset_info.json (describes data); "
        "books.jsonl (no word of its path names a split, as of other files here); test.jsonl (for tests)"
    )
    for number in range(9):
        (tmp_path / f"part-{number}.txt").touch()
    assert "part-0.txt, part-1.txt and 7 more (in no format" in find_split(str(tmp_path), None, "train").unread_files


def test_a_split_without_files_of_its_own_says_which_share_it_has(tmp_path):
    """Both splits read the same files, and nothing is left out."""
    (tmp_path / "a.jsonl").write_text(lines())
    training, validation = (find_split(str(tmp_path), None, name) for name in ("train", "validation"))
    assert (training.share, training.unread_files) == ("all but 1% of the documents, by their text", "")
    assert validation.share == "1% of the documents, by their text"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_empty_texts_are_counted_and_left_out(tmp_path, open_stream, caplog, suffix):
    """A third of the records may have no text or null, which is no damage; their number is logged now and then."""
    texts = [text for number, text in enumerate(TEXTS) for text in ([text, "", None] if number % 2 else [text])]
    if suffix == "parquet":
        pq.write_table(pa.table({"text": texts}), tmp_path / "train.parquet")
    else:
        (tmp_path / "train.jsonl").write_text(lines(texts))
    stream = open_stream(tmp_path, max_bad_records=0, streams=1)
    while not stream.finished_epochs()[0]:
        stream.next_batch()
    assert stream.faults.count("record") == 0
    assert stream.faults.empty_texts >= len(TEXTS)
    logged = [record.getMessage() for record in caplog.records]
    assert 1 <= len(logged) <= 3
    assert all("empty texts left out so far" in line for line in logged)


@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_named(tmp_path, open_stream, suffix, indent):
    """Whatever its lines look like, one line says what to do; a file behind the first one is looked at too."""
    (tmp_path / "0.jsonl").write_text(lines())
    content = json.dumps([{"text": text} for text in TEXTS], indent=indent).encode()
    path = tmp_path / f"1{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"is a JSON array: write one object per line, as by jq -c '\.\[\]'"):
        open_stream(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "config", "message"),
    [
        ("/nowhere/c4", "en", "neither an existing folder, nor"),
        (".", "xx", r"dataset '.' has no folder 'xx' .*; for files directly in '.', give --dataset-config-name none"),
        ("nowhere/c4", "en", "the Hugging Face hub does not serve it to this machine"),
    ],
)
def test_missing_dataset(dataset, config, message, monkeypatch):
    """A dataset that is not there is named together with what was looked for."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=message):
        find_split(dataset, config, "train")


def test_unknown_format(tmp_path):
    """An unknown format is reported with the known ones."""
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"known format \(\.jsonl .*\.safetensors \.bin \.npy \.mds\); found \.csv"):
        find_split(str(tmp_path), None, "train")


def test_missing_tokenizer(tmp_path):
    """A tokenizer that is not there is named together with what was looked for."""
    with pytest.raises(DataError, match=r"neither a folder with tokenizer\.json nor"):
        load_tokenizer(str(tmp_path))


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, caplog):
    """Without network a misspelt tokenizer is said at once, not after ten tries; a folder asks nobody."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(DataError, match="tokenizer 'gpt22': neither a folder"):
        load_tokenizer("gpt22")
    assert "Retrying" not in caplog.text


def test_tokenizer_without_end_token(tmp_path, open_stream):
    """Separating documents needs an end-of-text token."""
    WRITERS["jsonl"](tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(DataError, match="no end-of-text token"):
        open_stream(tmp_path, tokenizer=tokenizer)


def test_mixture_as_text():
    """``dataset=weight`` pairs name datasets with the run's folder and column; ``=`` may be in a name or path."""
    (named,) = sources_of(TrainConfig(data_mixture="ds/web=/data/k=v=0.5"))
    assert (named.name, named.dataset, named.weight) == ("ds/web", "/data/k=v", 0.5)
    web, code = sources_of(TrainConfig(data_mixture="/web=0.5,s3://a/b=c=2", text_column="body"))
    assert (web.dataset, web.weight, web.text_column) == ("/web", 0.5, "body")
    assert (code.name, code.dataset, code.weight) == ("s3://a/b=c", "s3://a/b=c", 2)


def test_a_mixture_means_the_same_from_every_folder(tmp_path, monkeypatch):
    """Stored options have absolute folders, and sources keep their names; identifiers and URLs stay as they are."""
    (tmp_path / "k=v" / "ds" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "k=v")
    given = TrainConfig(data_mixture="ds/a=1, owner/b=2,s3://c/d=3", validation_datasets="x=ds/a,y=owner/b")
    stored = given.with_absolute_paths()
    assert stored.with_absolute_paths() == stored
    before = sources_of(given)
    monkeypatch.chdir("/")
    for there, here in zip(before, sources_of(stored), strict=True):
        assert (here.name, here.weight) == (there.name, there.weight)
    folder = str(tmp_path / "k=v" / "ds" / "a")
    assert [source.dataset for source in sources_of(stored)] == [folder, "owner/b", "s3://c/d"]
    assert [source.dataset for source in validation_sources_of(stored)] == [folder, "owner/b"]


def test_no_file_stands_for_each_source(tmp_path, monkeypatch):
    """``validation_datasets`` ``sources`` stays a word where a file has that name."""
    (tmp_path / "sources").mkdir()
    monkeypatch.chdir(tmp_path)
    assert TrainConfig(validation_datasets="sources").with_absolute_paths().validation_datasets == "sources"


def test_a_folder_that_no_text_can_name_stays_as_it_is(tmp_path, monkeypatch):
    """A comma in a path separates datasets: only a YAML file can have it."""
    (tmp_path / "a,b" / "ds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a,b")
    stored = TrainConfig(data_mixture="ds=1", validation_datasets="x=ds").with_absolute_paths()
    assert (stored.data_mixture, stored.validation_datasets) == ("ds=1", "x=ds")


def test_folders_of_a_file_are_relative_to_it(tmp_path, monkeypatch):
    """One that is only in the current folder is refused, as the file would mean something else from another."""
    for folder in ("mixes/near", "far"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / "mixes" / "m.yaml"
    path.write_text("near: {dataset: near}\nhub: {dataset: owner/name}\n")
    for folder, text in ((tmp_path, "mixes/m.yaml"), (Path("/"), str(path))):
        monkeypatch.chdir(folder)
        near, hub = sources_of(TrainConfig(data_mixture=text))
        assert (near.dataset, hub.dataset) == (str(tmp_path / "mixes" / "near"), "owner/name")
    path.write_text("far: {dataset: far}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"far: dataset far is in the current folder.*write {tmp_path / 'far'}"):
        sources_of(TrainConfig(data_mixture="mixes/m.yaml"))


def test_mixture_as_file(tmp_path):
    """A YAML file names each source and what differs from the run's options."""
    path = tmp_path / "mixture.yaml"
    path.write_text("web: {dataset: owner/web, weight: 3}\ncode: {dataset: /code, dataset_config_name: null}\n")
    web, code = sources_of(TrainConfig(data_mixture=str(path)))
    assert web == Source(name="web", dataset="owner/web", dataset_config_name="en", weight=3)
    assert code == Source(name="code", dataset="/code")


def test_a_mixtures_values_are_the_words_that_the_user_wrote(tmp_path):
    """Texts that YAML 1.1 takes for truth values and numbers stay texts; a number may have any spelling of one."""
    path = tmp_path / "mixture.yaml"
    path.write_text("no: {dataset: /no, weight: 2e-1, text_column: on, dataset_config_name: 2024, max_epochs: 2}\n")
    (source,) = sources_of(TrainConfig(data_mixture=str(path)))
    texts = (source.name, source.dataset, source.text_column, source.dataset_config_name)
    assert (*texts, source.weight, source.max_epochs) == ("no", "/no", "on", "2024", 0.2, 2)


def test_datasets_to_validate_on(tmp_path):
    """They are named in a text or a file, or are the mixture's sources; the dataset's column is the default."""
    path = tmp_path / "sets.yaml"
    path.write_text("web: {dataset: /web}\ncode: {dataset: /code, text_column: content}\n")
    web, code = validation_sources_of(TrainConfig(validation_datasets=str(path), text_column="body"))
    assert (web.name, web.dataset, web.text_column, code.text_column) == ("web", "/web", "body", "content")
    options = TrainConfig(validation_datasets="a=/x,b=s3://y/z")
    assert [(each.name, each.dataset) for each in validation_sources_of(options)] == [("a", "/x"), ("b", "s3://y/z")]
    options = TrainConfig(validation_datasets="sources", data_mixture="/web=1,/code=2")
    assert validation_sources_of(options) == sources_of(options)
    path.write_text("web: {dataset: /web, weight: 2}\n")
    with pytest.raises(DataError, match="web: unknown key weight; keys: dataset, dataset_config_name, text_column"):
        validation_sources_of(TrainConfig(validation_datasets=str(path)))


def test_mixture_temperature():
    """At temperature 2, a source 16 times as large is read 4 times as often."""
    large, small = sources_of(TrainConfig(data_mixture="/large=16,/small=1", mixture_temperature=2))
    assert (large.weight, small.weight) == (4, 1)


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("[1]", ["need `name: {dataset: …, weight: …}` lines"]),
        ("{}", ["no dataset given"]),
        ("a: 3\nb: {dataset: x, wieght: 1}", ["a: got '3', need a mapping with dataset", "b: unknown key wieght"]),
        ("a: {dataset: [7]}", ["a: dataset: got ['7'], need a folder or a name"]),
        ("a: {dataset: x, max_epochs: 0}", ["a: max_epochs: got 0, need a whole number of at least 1"]),
        (
            "a: {dataset: x, weight: -1}\nb: {weight: 1}",
            ["a: weight: got -1.0, need a number of at least 0", "b: no dataset"],
        ),
    ],
)
def test_bad_mixture(tmp_path, content, messages):
    """All problems of a mixture are reported at once."""
    path = tmp_path / "mixture.yaml"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        sources_of(TrainConfig(data_mixture=str(path)))
    assert [message in line for message, line in zip(messages, str(caught.value).splitlines(), strict=True)]
    for message in messages:
        assert message in str(caught.value)
    with pytest.raises(DataError, match="weight: got 'many', need a number"):
        sources_of(TrainConfig(data_mixture="/web=many"))


class Flaky(io.BytesIO):
    """A file whose reads fail by a plan."""

    def __init__(self, content, plan) -> None:
        super().__init__(content)
        self.plan = plan

    def read(self, size=-1):
        error = next(self.plan, None)
        if error:
            raise error
        return super().read(size)[:100]


@pytest.fixture
def waits(monkeypatch):
    """Record the waiting times, without waiting."""
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def test_lost_connections(monkeypatch, waits):
    """Reads that fail are repeated from where they were, ever later, and the content is whole."""
    content = gzip.compress(lines().encode())
    plan = iter([None, ConnectionResetError("reset"), httpx2.ReadTimeout("slow"), None, OSError("again")])
    monkeypatch.setattr(remote, "_open", lambda _path: Flaky(content, plan))
    assert [document for block in contents("s3://bucket/train.jsonl.gz") for document in block] == list(
        enumerate(TEXTS)
    )
    assert [low <= wait <= 3 * low for wait, low in zip(waits, (0.5, 1, 0.5), strict=True)] == [True] * 3


def test_lost_for_good(monkeypatch, waits):
    """After the last try the run stops with the name of the file; a file that is not there is not waited for."""
    monkeypatch.setattr(remote, "_open", lambda _path: Flaky(b"x" * 9, iter(lambda: OSError("reset"), None)))
    for kind in ("parquet", "jsonl.gz", "arrow"):
        waits.clear()
        with pytest.raises(DataError, match=f"cannot read s3://b/a.{kind} in 6 attempts: reset"):
            contents(f"s3://b/a.{kind}")
        assert len(waits) == 5
    with pytest.raises(DataError, match=r"cannot read s3://b/x: gone"):
        remote.retry(lambda: (_ for _ in ()).throw(FileNotFoundError("gone")), "s3://b/x")
    assert len(waits) == 5


@pytest.fixture
def store(monkeypatch):
    """A client of a store of its own, which takes the place of S3."""
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield boto3.Session().client("s3", endpoint_url=endpoint)
    finally:
        server.stop()
        remote._s3_of_bucket.cache_clear()


@pytest.mark.parametrize("folder", ["jsonl.gz", "parquet"], indirect=True)
def test_s3(folder, open_stream, store):
    """A bucket gives what a folder gives."""
    bucket = folder.name
    store.create_bucket(Bucket=bucket)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        store.upload_file(str(path), bucket, f"texts/{path.relative_to(folder)}")
    assert torch.equal(tokens_of(open_stream(f"s3://{bucket}/texts")), tokens_of(open_stream(folder)))
    here, there = find_split(str(folder), None, "train"), find_split(f"s3://{bucket}/texts", None, "train")
    assert there.contents_digest == here.contents_digest
    changed = bytearray(Path(here.files[0]).read_bytes())
    changed[-1] ^= 1
    store.put_object(Bucket=bucket, Key=there.files[0].removeprefix(f"s3://{bucket}/"), Body=bytes(changed))
    again = find_split(f"s3://{bucket}/texts", None, "train")
    assert (again.digest, again.contents_digest != there.contents_digest) == (there.digest, True)
    with pytest.raises(DataError, match=f"'s3://{bucket}/none' does not exist or is empty"):
        find_split(f"s3://{bucket}/none", None, "train")


def test_each_stream_of_a_bucket_is_checked(open_stream, store):
    """A shard that one of them cannot read is found when the run starts, not when it is its turn."""
    store.create_bucket(Bucket="uneven")
    for number, content in enumerate((lines(), "\n\n", lines())):
        store.put_object(Bucket="uneven", Key=f"train-{number}.jsonl", Body=content.encode())
    stream = open_stream("s3://uneven", streams=8)
    stream.check_streams(8)
    store.delete_object(Bucket="uneven", Key="train-2.jsonl")
    with pytest.raises(DataError, match=r"cannot read s3://uneven/train-2.jsonl"):
        stream.check_streams(8)
