"""An epoch is every document once, in random order, for any files, streams, ranks, mixtures and interruptions."""

import gzip
import json
import multiprocessing
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwright_testing.token_files import write_llm_c, write_mds, write_megatron, write_numpy, write_raw
from podwright_training.data import order, spans, workers
from podwright_training.data.bad_data import BadRecordError, BadShardError, DataError
from podwright_training.data.formats import read_blocks, shard_errors
from podwright_training.data.mixture import Source
from podwright_training.data.order import ReadingOrder
from podwright_training.data.resume import merge_states
from podwright_training.data.spans import open_spans
from podwright_training.data.stream import PackedStream
from podwright_training.data.token_rule import TokenRule
from podwright_training.data.token_shards import write_token_shard
from podwright_training.data.tokenizer import Encoder

CONTEXT = 5
END = 0
DIVISORS = {4: (1, 2, 4), 6: (1, 2, 3, 6), 12: (1, 2, 3, 4, 6, 12)}


def words_of(number):
    """The words of a document that no other one is like: its number, some times."""
    return [number] * (1 + number * 7 % 11)


def write_lines(path, numbers):
    path.write_bytes(b"".join(json.dumps({"text": text(number)}).encode() + b"\n" for number in numbers))


def text(number):
    return " ".join(f"w{word}" for word in words_of(number))


def write_zstd(path, numbers):
    write_lines(path, numbers)
    path.write_bytes(pa.compress(path.read_bytes(), "zstd", asbytes=True) if numbers else b"")


def write_gzip(path, numbers):
    write_lines(path, numbers)
    path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))


def write_parquet(path, numbers):
    table = pa.table({"text": pa.array([text(number) for number in numbers], pa.string())})
    pq.write_table(table, path, row_group_size=5)


def write_arrow(path, numbers):
    table = pa.table({"text": pa.array([text(number) for number in numbers], pa.string())})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_tokens(path, numbers, digest):
    documents = [np.array([*words_of(number), END], dtype=np.uint16) for number in numbers]
    write_token_shard(path, documents, tokenizer=digest)


def stored(numbers):
    """The documents as token files of other programs have them, whose end is the EOS token too."""
    return [[*words_of(number), END] for number in numbers]


WRITERS = {
    "jsonl": write_lines, "jsonl.gz": write_gzip, "jsonl.zst": write_zstd, "parquet": write_parquet,
    "arrow": write_arrow,
}  # fmt: skip
FOREIGN_WRITERS = {
    "megatron.bin": lambda path, numbers: write_megatron(path, stored(numbers)),
    "llmc.bin": lambda path, numbers: write_llm_c(path, stored(numbers)),
    "bin": lambda path, numbers: write_raw(path, stored(numbers)),
    "npy": lambda path, numbers: write_raw(path, stored(numbers)),
    "mds": lambda path, numbers: write_mds(path, stored(numbers)),
    "saved.npy": lambda path, numbers: write_numpy(path, stored(numbers)),
}
TEXT_FORMATS = (*WRITERS, "safetensors")
FORMATS = (*TEXT_FORMATS, *FOREIGN_WRITERS)
# Other .bin files beside Megatron's are refused, as their index may have been left behind.
FORMATS_IN_ONE_FOLDER = (
    TEXT_FORMATS,
    tuple(name for name in FOREIGN_WRITERS if name != "megatron.bin"),
    tuple(name for name in FOREIGN_WRITERS if name not in {"bin", "llmc.bin"}),
)
RULE = TokenRule(dtype="uint16", stored_end=END, end=END, vocabulary_size=1000)


def write_source(folder, shards, *, first, digest):
    """Write shards of some sizes and formats; return the numbers of their documents."""
    folder.mkdir()
    # Without files for validation, a hundredth of the documents is held out. Texts would hide the token files.
    is_foreign = any(kind in FOREIGN_WRITERS for kind, _ in shards)
    write_validation = FOREIGN_WRITERS["bin"] if is_foreign else write_lines
    write_validation(folder / f"validation.{'bin' if is_foreign else 'jsonl'}", range(900, 910))
    number = first
    for index, (kind, size) in enumerate(shards):
        numbers = range(number, number + size)
        path = folder / f"train-{index:03d}.{kind}"
        if kind == "safetensors":
            write_tokens(path, numbers, digest)
        else:
            (WRITERS | FOREIGN_WRITERS)[kind](path, numbers)
        number += size
    return range(first, number)


def source_of(folder, **options):
    """A source of any format; the type of raw tokens has to be named."""
    return Source(dataset=str(folder), token_dtype="uint16", **options)


def open_ranks(sources, world_size, *, tokenizer, streams, state=None, seed=0, split="train"):
    ranks = [
        PackedStream(
            sources, split=split, tokenizer=tokenizer, context_width=CONTEXT, rank=rank, world_size=world_size,
            local_batch_size=streams // world_size, streams=streams, seed=seed,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    for rank in ranks if state else ():
        rank.load_state_dict(state)
    return ranks


def draw(ranks):
    """Return the next global batch in global order: of each sequence the tokens that it has."""
    batches = [rank.next_batch() for rank in ranks]
    pairs = [
        (batch.tokens_BT[row], batch.labels_BT[row]) for row in range(len(batches[0].tokens_BT)) for batch in batches
    ]
    lengths = [int((labels_T >= 0).sum()) for _, labels_T in pairs]
    return [
        [int(tokens_T[0]), *labels_T[:length].tolist()] if length else []
        for (tokens_T, labels_T), length in zip(pairs, lengths, strict=True)
    ]


def spent_streams(ranks):
    """Of each source, the streams that have read it: added up, as the trainer does."""
    return [sum(counts) for counts in zip(*(rank.spent_streams() for rank in ranks), strict=True)]


def is_spent(ranks, streams):
    return streams in spent_streams(ranks)


def state_of(ranks):
    return json.loads(json.dumps(merge_states([rank.state_dict() for rank in ranks])))


def documents_of(rows, streams, *, first, last):
    """Count the documents of a source that its streams have read: the tokens up to an end, or the end of all."""
    counted = Counter()
    for stream in range(streams):
        of_source = (row for row in rows[stream::streams] if any(first <= token <= last for token in row))
        document = []
        for token in chain.from_iterable(of_source):
            if token == END:
                counted[tuple(document)] += 1
                document = []
            else:
                document.append(token)
        if document:  # the last end is left out where it would be a sequence of one token
            counted[tuple(document)] += 1
    return counted


@contextmanager
def small_pieces(window_bytes):
    """Read in windows of a few bytes, and compressed files as those that are too large to decompress whole."""
    with pytest.MonkeyPatch.context() as patch:
        if window_bytes:
            patch.setattr(order, "LEAST_WINDOW_BYTES", window_bytes)
            patch.setattr(order, "MOST_WINDOW_BYTES", window_bytes)
            patch.setattr(spans, "WHOLE_BYTES", 0)
            patch.setattr(spans, "PIECE_BYTES", 16)
        order._line.cache_clear()  # It has lines of equal orders, whose pieces had another size.
        yield
        order._line.cache_clear()


shards_of = (
    st.sampled_from(FORMATS_IN_ONE_FOLDER)
    .flatmap(
        lambda formats: st.lists(
            st.tuples(st.sampled_from(formats), st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8, 13, 30])),
            min_size=1,
            max_size=8,
        )
    )
    .filter(lambda shards: any(size for _, size in shards))
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shards=st.lists(shards_of, min_size=1, max_size=2),
    epochs=st.tuples(st.integers(1, 3), st.none() | st.integers(1, 3)),
    weight=st.floats(0.2, 5),
    streams=st.sampled_from(list(DIVISORS)),
    stops=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=3),
    window_bytes=st.sampled_from([None, 300]),
    seed=st.integers(0, 3),
)
@pytest.mark.slow
def test_an_epoch_is_every_document_once(word_tokenizer, shards, epochs, weight, streams, stops, window_bytes, seed):
    """The run ends with each document read max_epochs times, for any shards, streams, ranks, mixture and stops."""
    with tempfile.TemporaryDirectory() as name, small_pieces(window_bytes):
        digest = Encoder(word_tokenizer).digest
        numbers, sources = [], []
        for index, of_source in enumerate(shards):
            folder = Path(name, str(index))
            numbers.append(write_source(folder, of_source, first=1 + 450 * index, digest=digest))
            sources.append(source_of(folder, name=str(index), weight=weight**index, max_epochs=epochs[index]))
        options = {"tokenizer": word_tokenizer, "streams": streams, "seed": seed}
        ranks, rows = open_ranks(sources, 1, **options), []
        for choice, batches in [*stops, (0, 10_000)]:
            sizes = DIVISORS[streams]
            ranks = open_ranks(sources, sizes[choice % len(sizes)], state=state_of(ranks), **options)
            for _ in range(batches):
                if not is_spent(ranks, streams):
                    rows += draw(ranks)
        assert ranks[0].is_end(state_of(ranks))
        for index, finished in enumerate(spent_streams(ranks)):
            if finished == streams:
                expected = Counter({tuple(words_of(number)): epochs[index] for number in numbers[index]})
                read = documents_of(rows, streams, first=1 + 450 * index, last=450 + 450 * index)
                assert read - Counter({(): read[()]}) == expected


@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=30),
    divisible=st.lists(st.booleans(), min_size=30, max_size=30),
    streams=st.integers(1, 200),
    epoch=st.integers(0, 300),
    window_bytes=st.sampled_from([100, 4000, None]),
)
def test_streams_share_the_bytes_evenly(sizes, divisible, streams, epoch, window_bytes):
    """Each byte is in one window of one stream, and streams have equally many bytes, but for one."""
    with small_pieces(window_bytes):
        line = ReadingOrder(tuple(sizes), tuple(divisible[: len(sizes)]), streams, seed=1)
        parts = [
            [span for window in range(line.windows(stream, epoch)) for span in line.spans(stream, epoch, window)]
            for stream in range(streams)
        ]
        lengths = [sum(span.end - span.begin for span in part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    every = sorted(chain.from_iterable(parts))
    for file, size in enumerate(sizes):
        cuts = [(span.begin, span.end) for span in every if span.file == file]
        assert [begin for begin, _ in cuts] + [size] * bool(size) == [0] * bool(size) + [end for _, end in cuts]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(FORMATS),
    documents=st.integers(1, 60),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    shuffled=st.booleans(),
    window_bytes=st.sampled_from([None, 300]),
)
def test_spans_have_each_document_once(word_tokenizer, kind, documents, cuts, shuffled, window_bytes):
    """Spans that cover a file have its documents in order, read in any order, from one reader or several."""
    with tempfile.TemporaryDirectory() as name, small_pieces(window_bytes):
        digest = Encoder(word_tokenizer).digest
        numbers = write_source(Path(name, "data"), [(kind, documents)], first=1, digest=digest)
        path = next(path for path in Path(name, "data").glob("train*") if path.suffix != ".idx")
        size = path.stat().st_size
        places = sorted({0, size, *(int(cut * size) for cut in cuts)})
        reader = open_spans(str(path), size, column="text", tokenizer=digest, token_rule=RULE)
        read = {}
        for begin, end in sorted(pairwise(places), reverse=shuffled):
            blocks = reader.read(begin, end)
            read[begin] = [block.document(index) for block in blocks for index in range(len(block))]
        reader.close()
    texts = [each if isinstance(each, str) else text(int(each[0])) for _, part in sorted(read.items()) for each in part]
    assert texts == [text(number) for number in numbers]


@pytest.mark.parametrize("small", [False, True], ids=["", "small pieces"])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_lines_of_any_form(tmp_path, suffix, small, monkeypatch):
    """Long lines, blank ones, other line ends and no last one: each is in one span, under its number."""
    monkeypatch.setattr(spans, "BEYOND_BYTES", 3)
    monkeypatch.setattr(spans, "LONG_LINE_BYTES", 5)
    content = b'\n{"text": "one"}\r\n\n\n   \n{"text": "' + b"two " * 50 + b'"}\n\n{"text": "three"}\nx'
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    size = path.stat().st_size
    with small_pieces(300 if small else None):
        for step in (1, 2, 7, 100, size):
            reader = open_spans(str(path), size, column="text", tokenizer="")
            read = []
            for begin in range(0, size, step):
                for block in reader.read(begin, min(size, begin + step)):
                    for index in range(len(block)):
                        try:
                            read.append((block.number(index), block.document(index)[:5]))
                        except BadRecordError:
                            read.append((block.number(index), None))
            reader.close()
            assert read == [(2, "one"), (6, "two t"), (8, "three"), (9, None)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("streams", [1, 4])
def test_a_sorted_file_is_shuffled(word_tokenizer, tmp_path, kind, streams):
    """The places of documents in training and in the file are not correlated, over the epoch and in each quarter."""
    numbers = write_source(tmp_path / "data", [(kind, 800)], first=1, digest=Encoder(word_tokenizer).digest)
    sources = [source_of(tmp_path / "data", name="sorted", max_epochs=1)]
    (stream,) = open_ranks(sources, 1, tokenizer=word_tokenizer, streams=streams)
    read = []
    while not stream.is_spent:
        for row in draw([stream]):
            read += [token for token in dict.fromkeys(row) if token and token not in read[-30:]]
    read = list(dict.fromkeys(read))
    assert sorted(read) == list(numbers)
    assert abs(np.corrcoef(np.arange(len(read)), read)[0, 1]) < 0.12
    quarters = [np.mean(quarter) / len(read) for quarter in np.array_split(read, 4)]
    assert max(abs(mean - 0.5) for mean in quarters) < 0.1
    neighbours = sum(abs(one - other) == 1 for one, other in pairwise(read))
    assert neighbours < 30


@pytest.mark.parametrize("kind", ["jsonl", "safetensors", *FOREIGN_WRITERS])
def test_pieces_are_shuffled_over_the_whole_split(word_tokenizer, tmp_path, kind):
    """A single stream whose window is a twentieth of the data has documents from all of it in each window."""
    write_source(tmp_path / "data", [(kind, 400), (kind, 499)], first=1, digest=Encoder(word_tokenizer).digest)
    with small_pieces(2000):
        (stream,) = open_ranks(
            [source_of(tmp_path / "data", name="sorted", max_epochs=1)],
            1,
            tokenizer=word_tokenizer,
            streams=1,
        )
        read = []
        while not stream.is_spent:
            read += [token for row in draw([stream]) for token in row if token]
    means = [np.mean(part) / 899 for part in np.array_split(read, 5)]
    assert 0.25 < min(means) < max(means) < 0.75


def test_streams_sample_all_of_a_sorted_source(word_tokenizer, tmp_path):
    """Also where windows are a hundredth of a compressed file, each batch has documents from all of it."""
    write_source(tmp_path / "data", [("jsonl.gz", 899)], first=1, digest="")
    with small_pieces(50):
        sources = [Source(name="sorted", dataset=str(tmp_path / "data"), max_epochs=1)]
        (stream,) = open_ranks(sources, 1, tokenizer=word_tokenizer, streams=12)
        means = []
        while stream.epochs_read()[0] < 0.8 * 12:
            tokens = [token for row in draw([stream]) for token in row if token]
            means.append(np.mean(tokens) / 899)
    assert 0.3 < min(means) < max(means) < 0.7


def test_less_data_than_streams(word_tokenizer, tmp_path):
    """Two documents feed twelve streams without end, and once each with max_epochs 1, on any number of ranks."""
    write_source(tmp_path / "data", [("jsonl", 0), ("jsonl", 1), ("parquet", 1)], first=1, digest="")
    endless = [Source(name="tiny", dataset=str(tmp_path / "data"))]
    for world_size in (1, 4):
        ranks = open_ranks(endless, world_size, tokenizer=word_tokenizer, streams=12)
        rows = [row for _ in range(4) for row in draw(ranks)]
        assert all(len(row) == CONTEXT + 1 for row in rows)
        assert set(chain.from_iterable(rows)) == {END, 1, 2}
        ranks = open_ranks([replace(endless[0], max_epochs=1)], world_size, tokenizer=word_tokenizer, streams=12)
        rows = []
        while not is_spent(ranks, 12):
            rows += draw(ranks)
        assert documents_of(rows, 12, first=1, last=2) == {tuple(words_of(number)): 1 for number in (1, 2)}


def test_no_document_is_an_error(word_tokenizer, tmp_path):
    """A source without one is named, not searched for ever, also where the share held out for validation has none."""
    write_source(tmp_path / "data", [("jsonl", 0)], first=1, digest="")
    sources = [Source(name="none", dataset=str(tmp_path / "data"))]
    with pytest.raises(DataError, match="data source none has no document in 1 shards"):
        open_ranks(sources, 1, tokenizer=word_tokenizer, streams=4)[0].check_streams(4)
    write_lines(tmp_path / "data" / "train-000.jsonl", range(1, 4))
    (tmp_path / "data" / "validation.jsonl").unlink()
    with pytest.raises(DataError, match=r"no document for validation in 1 shards .* is held out .* such as validation"):
        open_ranks(sources, 1, tokenizer=word_tokenizer, streams=4, split="validation")[0].next_batch()


def test_position_of_another_order_is_refused(word_tokenizer, tmp_path):
    """A checkpoint from before the order by bytes says in one line what to do."""
    write_source(tmp_path / "data", [("jsonl", 9)], first=1, digest="")
    (stream,) = open_ranks([Source(name="a", dataset=str(tmp_path / "data"))], 1, tokenizer=word_tokenizer, streams=4)
    state = stream.state_dict()
    del state["order"]
    assert [line.partition(":")[0] for line in stream.differences(state)] == [
        "the checkpoint is of an earlier podwright, which ordered the documents in another way"
    ]
    with pytest.raises(DataError, match="--init-from and this checkpoint"):
        stream.load_state_dict(state)


def test_the_share_that_was_read(word_tokenizer, tmp_path):
    """It is the bytes' of documents so far, in each source, and an epoch's size is estimated from a few of them."""
    digest = Encoder(word_tokenizer).digest
    sources = []
    for index, sizes in enumerate([[100, 100, 90], [20]]):
        numbers = write_source(tmp_path / str(index), [("jsonl", size) for size in sizes], first=1, digest=digest)
        sources.append(Source(name=str(index), dataset=str(tmp_path / str(index)), max_epochs=2))
    (stream,) = open_ranks(sources, 1, tokenizer=word_tokenizer, streams=4)
    large, small = stream.overview()
    assert (large["files"], large["bytes"]) == (3, sum(path.stat().st_size for path in (tmp_path / "0").glob("train*")))
    tokens = sum(len(words_of(number)) + 1 for number in range(1, 291))
    assert 0.8 < large["epoch_tokens"] / tokens < 1.25
    assert 0.8 < large["epoch_sequences"] / (2 * tokens / (CONTEXT + 1)) < 1.25
    assert small["epoch_tokens"] == sum(len(words_of(number)) + 1 for number in numbers)
    assert small["streams"] == 4
    assert len(numbers) == 20
    while not stream.is_spent:
        draw([stream])
    assert stream.epochs_read()[1] == 8
    share = stream.sequences_by_source["0"] * (CONTEXT + 1) / tokens
    assert abs(stream.epochs_read()[0] / 4 - share) < 0.1


def test_a_damaged_row_group_costs_no_other(tmp_path):
    """One reader yields the groups behind a damaged one, and names the damage wherever a span reaches it."""
    path = tmp_path / "a.parquet"
    texts = [f"{number:04} {'x' * 50}" for number in range(60)]
    options = {"row_group_size": 20, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"text": texts}), path, **options)
    page = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page : page + 40] = b"\xff" * 40
    path.write_bytes(content)
    size = len(content)
    reader = open_spans(str(path), size, column="text", tokenizer="")
    read, damages = [], 0
    for row in range(0, 60, 5):
        try:
            with shard_errors(str(path)):
                for block in reader.read(row * size // 60, (row + 5) * size // 60):
                    read += [block.document(index) for index in range(len(block))]
        except BadShardError:
            damages += 1
    reader.close()
    assert read == texts[:20] + texts[40:]
    assert damages == 4


@pytest.mark.parametrize("kind", ["offsets", "a column's name"])
def test_a_damaged_arrow_file_is_a_broken_shard(tmp_path, kind):
    """Arrow itself would end the process at a text of negative length, and raise an error of its own at the name."""
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["one", "two", "three"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    offsets = np.array([0, 3, 6, 11], dtype=np.int32).tobytes()
    damaged = np.array([0, 6, 3, 11], dtype=np.int32).tobytes()
    old, new = (offsets, damaged) if kind == "offsets" else (b"\x04\0\0\0text", b"\x04\0\0\0\x9cext")
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(BadShardError, match="truncated or damaged"), shard_errors(str(path)):
        list(open_spans(str(path), len(content), column="text", tokenizer="").read(0, len(content)))
    with pytest.raises(BadShardError, match="truncated or damaged"):
        list(read_blocks(str(path), column="text"))


def test_token_shards_may_have_documents_without_tokens(word_tokenizer, tmp_path):
    """They count as read, also in a shard that has no token at all."""
    digest = Encoder(word_tokenizer).digest
    write_lines(tmp_path / "validation.jsonl", [1])
    empty = np.array([], dtype=np.uint16)
    write_token_shard(tmp_path / "train-0.safetensors", [empty, empty], tokenizer=digest)
    write_token_shard(tmp_path / "train-1.safetensors", [empty, np.array([5, END]), empty], tokenizer=digest)
    write_token_shard(tmp_path / "train-2.safetensors", [], tokenizer=digest)
    sources = [Source(name="tokens", dataset=str(tmp_path), max_epochs=2)]
    ranks, rows = open_ranks(sources, 1, tokenizer=word_tokenizer, streams=4), []
    while not is_spent(ranks, 4):
        rows += draw(ranks)
    assert documents_of(rows, 4, first=5, last=5) == {(5,): 2}
    assert not ranks[0].faults.fault_by_place


def test_an_error_that_nobody_reads_any_more_ends_a_worker_quietly(word_tokenizer, tmp_path, monkeypatch):
    """The trainer has ended, and then the disk is gone, too."""
    write_source(tmp_path / "data", [("jsonl", 9)], first=1, digest="")
    (stream,) = open_ranks([Source(name="a", dataset=str(tmp_path / "data"))], 1, tokenizer=word_tokenizer, streams=4)
    next((tmp_path / "data").glob("train*")).unlink()
    monkeypatch.setattr(workers, "IGNORED_SIGNALS", ())
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    reader, sender = multiprocessing.Pipe(duplex=False)
    reader.close()
    workers._work(sender, stream._recipe, stream._positions, 0, 1)
