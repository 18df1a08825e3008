"""The packed stream: one global order, whatever the number of ranks, and exact positions."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_training.data.bad_data import DataError
from podwright_training.data.mixture import Mixture, Source
from podwright_training.data.resume import merge_states
from podwright_training.data.stream import PackedStream
from podwright_training.data.workers import IGNORED_SIGNALS, PIPE_BYTES

CONTEXT = 7
LIMIT_S = 300
END = 0


def write_shard(folder, name, lines):
    """A shard with these lines."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / name, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def document(number):
    """A record whose text repeats one word."""
    return json.dumps({"text": " ".join([f"w{number}"] * (1 + number % 13)), "url": "", "timestamp": ""})


def write_corpus(folder, *, shards, documents_per_shard=20):
    """Training shards with documents 1, 2, …, and one validation shard."""
    for shard in range(shards):
        numbers = range(1 + shard * documents_per_shard, 1 + (shard + 1) * documents_per_shard)
        write_shard(folder / "en", f"c4-train.{shard:05d}-of-01024.json.gz", map(document, numbers))
    write_shard(folder / "en", "c4-validation.00000-of-00008.json.gz", map(document, range(900, 940)))
    return folder


@pytest.fixture(scope="module", params=[2, 5, 12, 20], ids="{} shards".format)
def corpus(request, tmp_path_factory):
    """240 training documents."""
    return write_corpus(tmp_path_factory.mktemp("c4"), shards=request.param, documents_per_shard=240 // request.param)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Return two sources with documents numbered below 500 and from 500 on."""
    folder = tmp_path_factory.mktemp("mixture")
    write_corpus(folder / "few", shards=3, documents_per_shard=40)
    for shard in range(30):
        numbers = range(500 + shard * 10, 510 + shard * 10)
        write_shard(folder / "many", f"train-{shard:02d}.jsonl.gz", map(document, numbers))
    few = Source(name="few", dataset=str(folder / "few"), dataset_config_name="en", weight=1)
    return [few, Source(name="many", dataset=str(folder / "many"), weight=3)]


@pytest.fixture
def make_ranks(word_tokenizer):
    """Builds the streams of all ranks of a job with 24 sequences per global batch."""
    made = []

    def make(world_size, data, *, batch=24, state=None, **options):
        sources = data if isinstance(data, list) else [Source(name="c4", dataset=str(data), dataset_config_name="en")]
        settings = {"split": "train", "tokenizer": word_tokenizer, "context_width": CONTEXT, "streams": 24} | options
        ranks = [
            PackedStream(sources, rank=rank, world_size=world_size, local_batch_size=batch // world_size, **settings)
            for rank in range(world_size)
        ]
        for rank in ranks if state else ():
            rank.load_state_dict(state)
        made.extend(ranks)
        return ranks

    yield make
    for stream in made:
        stream.close()


def draw(ranks):
    """The next global batch in global order: rank r holds the sequences that are r modulo the number of ranks."""
    return torch.stack([rows(rank) for rank in ranks], dim=1).flatten(0, 1).tolist()


def rows(stream):
    """The sequences of a stream's next batch with the token after each."""
    batch = stream.next_batch()
    return torch.cat([batch.tokens_BT, batch.labels_BT[:, -1:]], dim=1)


def state_of(ranks):
    """Return the state of a checkpoint, after a round trip through JSON."""
    return json.loads(json.dumps(merge_states([rank.state_dict() for rank in ranks])))


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_order_does_not_depend_on_world_size(make_ranks, corpus, world_size):
    """Every global batch is the same for 1, 2, 3 and 8 ranks."""
    one, several = make_ranks(1, corpus), make_ranks(world_size, corpus)
    assert [draw(one) for _ in range(15)] == [draw(several) for _ in range(15)]


@settings(max_examples=25, deadline=None)
@given(world_size=st.sampled_from([2, 3, 4, 8]), sizes=st.lists(st.integers(1, 24), min_size=1, max_size=6))
def test_batches_of_any_size_are_shared_evenly(corpus, word_tokenizer, world_size, sizes):
    """Ranks have numbers of sequences that differ by one at most; together they are the next ones, each once."""
    one = {
        "sources": [Source(name="c4", dataset=str(corpus), dataset_config_name="en")], "split": "train",
        "tokenizer": word_tokenizer, "streams": 24, "context_width": CONTEXT,
    }  # fmt: skip
    alone = PackedStream(**one, rank=0, world_size=1, local_batch_size=24)
    ranks = [
        PackedStream(**one, rank=rank, world_size=world_size, local_batch_size=24 // world_size)
        for rank in range(world_size)
    ]
    for size in sizes:
        whole, parts = alone.next_batch(size), [rank.next_batch(size) for rank in ranks]
        own = [rank.own_sequences() for rank in ranks]
        assert max(map(len, own)) - min(map(len, own)) <= 1
        assert sorted(number for numbers in own for number in numbers) == list(alone.own_sequences())
        first = alone.own_sequences().start
        for numbers, part in zip(own, parts, strict=True):
            for row, number in enumerate(numbers):
                assert torch.equal(part.tokens_BT[row], whole.tokens_BT[number - first])
            assert part.counted_tokens == len(numbers) * CONTEXT
    assert state_of(ranks) == state_of([alone])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_stop_at_four_ranks_and_go_on(make_ranks, mixture, workers):
    """A mixture stopped at 4 ranks continues at 2 and then 8 as if undisturbed, with workers and without."""
    undisturbed = make_ranks(1, mixture)
    expected = [draw(undisturbed) for _ in range(6)]
    seen, state = [], None
    for world_size in (4, 2, 8):
        ranks = make_ranks(world_size, mixture, state=state, workers=workers)
        seen += [draw(ranks) for _ in range(2)]
        state = state_of(ranks)
    assert seen == expected


@settings(max_examples=25, deadline=None)
@given(
    stops=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.integers(0, 6)), min_size=1, max_size=4),
    mixed=st.booleans(),
    seed=st.integers(0, 3),
)
@pytest.mark.slow
def test_resume_is_exact_anywhere(mixture, word_tokenizer, stops, mixed, seed):
    """Stopping at any sequence and going on with any number of ranks loses and repeats no token, over epochs."""
    one = {
        "sources": mixture if mixed else mixture[:1], "split": "train", "tokenizer": word_tokenizer, "streams": 24,
        "context_width": CONTEXT, "seed": seed,
    }  # fmt: skip
    undisturbed, state = PackedStream(**one, rank=0, world_size=1, local_batch_size=24), None
    for world_size, batches in stops:
        ranks = [
            PackedStream(**one, rank=rank, world_size=world_size, local_batch_size=24 // world_size)
            for rank in range(world_size)
        ]
        for rank in ranks if state else ():
            rank.load_state_dict(state)
        for _ in range(batches):
            assert draw(ranks) == draw([undisturbed])
        state = state_of(ranks)
        assert state == state_of([undisturbed])


def test_dead_worker(make_ranks, tmp_path):
    """A worker that the kernel kills ends the run with a clear line, not with waiting."""
    (stream,) = make_ranks(1, write_corpus(tmp_path, shards=2), streams=2, workers=1)
    stream.next_batch()
    (worker,) = stream._running
    worker._process.kill()
    with pytest.raises(DataError, match="was killed; is the host out of memory"):
        stream.replay(1_000_000)


def test_worker_that_dies_within_a_message(make_ranks, tmp_path):
    """The same line comes where a sequence is longer than the pipe, and its worker is killed as it sends it."""
    data = write_corpus(tmp_path, shards=2, documents_per_shard=2000)
    (stream,) = make_ranks(1, data, batch=1, streams=2, workers=1, context_width=PIPE_BYTES // 4)
    stream.next_batch()
    (worker,) = stream._running
    assert worker._pipe.poll(LIMIT_S)  # a message has begun
    worker._process.kill()
    worker._process.join()  # else it goes on while the pipe is emptied
    with pytest.raises(DataError, match="was killed; is the host out of memory"):
        stream.next_batch()


@pytest.mark.slow
def test_worker_outlives_stop_signals(make_ranks, tmp_path):
    """Slurm's signals reach workers too; they go on, so that the trainer can finish its step and save."""
    (stream,) = make_ranks(1, write_corpus(tmp_path, shards=2), streams=2, workers=1)
    stream.next_batch()
    (worker,) = stream._running
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(worker._process.pid, number)
    stream.replay(20_000)
    assert worker._process.is_alive()


@pytest.mark.slow
def test_worker_outlives_stop_signals_while_it_starts(make_ranks, tmp_path, monkeypatch):
    """They reach it before it runs a line of its own, and it makes sequences all the same."""
    start = SpawnProcess.start

    def start_and_signal(process):
        start(process)
        for number in IGNORED_SIGNALS:
            os.kill(process.pid, number)

    monkeypatch.setattr(SpawnProcess, "start", start_and_signal)
    (stream,) = make_ranks(1, write_corpus(tmp_path, shards=2), streams=2, workers=1)
    stream.next_batch()
    (worker,) = stream._running
    assert worker._process.is_alive()


@pytest.mark.slow
def test_worker_ends_with_its_trainer(tmp_path):
    """Nothing is left of a trainer that was killed."""
    write_corpus(tmp_path, shards=2)
    script = f"""
import time
from podwright_training.data.mixture import Source
from podwright_training.data.stream import PackedStream
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
if __name__ == "__main__":
    model = Tokenizer(models.WordLevel({{"<end>": 0, "w1": 1}}, unk_token="<end>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    stream = PackedStream([Source(name="c4", dataset={str(tmp_path)!r}, dataset_config_name="en")], split="train",
                          tokenizer=PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>"), streams=1,
                          context_width=7, rank=0, world_size=1, local_batch_size=1, workers=1)
    stream.next_batch()
    print(stream._running[0]._process.pid, flush=True)
    time.sleep(600)
"""
    (tmp_path / "trainer.py").write_text(script)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    trainer = subprocess.Popen(
        [sys.executable, str(tmp_path / "trainer.py")], env=here, stdout=subprocess.PIPE, text=True
    )
    worker = Path("/proc", trainer.stdout.readline().strip())
    assert worker.exists()
    trainer.kill()
    trainer.communicate()
    for _ in range(600):
        if not worker.exists() or "State:\tZ" in (worker / "status").read_text():
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there after a minute")


def test_error_in_worker(make_ranks, tmp_path):
    """A read error in a worker is reported as without workers."""
    folder = write_corpus(tmp_path, shards=1)
    (stream,) = make_ranks(1, folder, streams=1, workers=1)
    next((folder / "en").glob("c4-train.*")).unlink()
    with pytest.raises(DataError, match=r"cannot read \S*c4-train\.00000-of-01024\.json\.gz: No such file"):
        stream.next_batch()


def test_mixture_shares(make_ranks, mixture):
    """Every batch has its sources in the shares of their weights, and no sequence has two sources."""
    ranks = make_ranks(2, mixture)
    for _ in range(5):
        sources = [{token >= 500 for token in sequence if token != END} for sequence in draw(ranks)]
        assert all(len(source) == 1 for source in sources)
        assert abs(sum(source == {True} for source in sources) - 18) <= 1


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    streams=st.integers(1, 4096),
    begin=st.integers(0, 10**9),
    count=st.integers(1, 500),
)
def test_mixture_is_even(weights, streams, begin, count):
    """In any stream, and in all of them, a source's share of any sequences in a row is its weight's, but for a few."""
    mixed = Mixture(weights, streams=streams)
    for stride, few in ((streams, 6), (1, 12)):
        counts = Counter(mixed.source(begin + stride * number) for number in range(count))
        for source, weight in enumerate(weights):
            assert abs(counts[source] - count * weight / sum(weights)) <= few


def test_weights_may_change(make_ranks, mixture):
    """A run continues with other weights, each source from its position."""
    ranks = make_ranks(2, mixture)
    seen = [draw(ranks) for _ in range(3)]
    only_few = [mixture[0], replace(mixture[1], weight=1e-9)]
    ranks = make_ranks(2, only_few, state=state_of(ranks))
    seen += [draw(ranks) for _ in range(60)]
    streams = list(zip(*seen, strict=True))
    words = [[token for row in stream for token in row if token < 500 and row[0] < 500] for stream in streams]
    assert all(words)


@pytest.mark.slow
def test_replay(make_ranks, mixture):
    """A batch can be drawn again from its coordinates, at another number of ranks and with workers too."""
    ranks = make_ranks(2, mixture)
    assert [len(rank.coordinates()) for rank in ranks] == [0, 0]
    draw(ranks)
    state = state_of(ranks)
    wanted = [draw(ranks) for _ in range(4)][-1]
    assert [rank.coordinates() for rank in ranks] == [range(96, 120)] * 2
    for workers in (0, 2):
        again = make_ranks(3, mixture, state=state, workers=workers)
        for rank in again:
            rank.replay(96)
        assert draw(again) == wanted
        assert {rank.coordinates() for rank in again} == {range(96, 120)}
    with pytest.raises(ValueError, match="sequence 96 is behind this position, 120"):
        ranks[0].replay(96)


def test_document_mask(make_ranks, tmp_path):
    """Positions count from each document's first token in the sequence; tokens and labels are the same as without."""
    folder = write_corpus(tmp_path, shards=2)
    (plain,), (masked,) = make_ranks(1, folder, streams=4), make_ranks(1, folder, streams=4, document_mask=True)
    for _ in range(5):
        without, batch = plain.next_batch(), masked.next_batch()
        assert without.positions_BT is None
        assert torch.equal(without.tokens_BT, batch.tokens_BT)
        assert torch.equal(without.labels_BT, batch.labels_BT)
        for tokens, positions in zip(batch.tokens_BT.tolist(), batch.positions_BT.tolist(), strict=True):
            ends = [0, *(place + 1 for place, token in enumerate(tokens) if token == END), len(tokens)]
            assert positions == [place for first, end in pairwise(ends) for place in range(end - first)]


def test_seed(make_ranks, corpus):
    """Another seed is another order."""
    assert draw(make_ranks(1, corpus, seed=1)) != draw(make_ranks(1, corpus, seed=2))


def test_splits_are_disjoint(make_ranks, corpus):
    """The validation stream reads the validation shards only."""
    tokens = {token for sequence in draw(make_ranks(1, corpus, split="validation")) for token in sequence}
    assert tokens <= {END, *range(900, 940)}


@pytest.mark.slow
def test_held_out_validation(make_ranks, tmp_path):
    """Without validation shards a fixed share of the documents is for validation and never in training."""
    write_shard(tmp_path / "en", "part.jsonl.gz", map(document, range(1, 1000)))
    seen = {}
    for split in ("train", "validation"):
        ranks = make_ranks(1, tmp_path, split=split, streams=1)
        seen[split] = {token for _ in range(100) for sequence in draw(ranks) for token in sequence} - {END}
    assert not seen["train"] & seen["validation"]
    assert seen["train"] | seen["validation"] == set(range(1, 1000))
    assert 1 <= len(seen["validation"]) <= 30


def test_indivisible_world_size(make_ranks, corpus):
    """A world size that does not divide the streams is refused with those that do."""
    with pytest.raises(ValueError, match=r"24 data streams .* 5 ranks; allowed world sizes: 1, 2, 3, 4, 6, 8, 12, 24"):
        make_ranks(5, corpus)


def test_foreign_state(make_ranks, corpus, mixture):
    """A position of another number of streams, another seed, other data, or one rank only is refused, with reasons."""
    ranks = make_ranks(2, corpus)
    with pytest.raises(DataError, match=r"(?s)data_streams is 24 in .*, 6 in this.*\nseed is 0 in .*, 1 in this"):
        make_ranks(1, corpus, streams=6, seed=1)[0].load_state_dict(state_of(ranks))
    with pytest.raises(DataError, match=r"data source c4 has other shards than in the checkpoint: .* name other data"):
        make_ranks(1, [replace(mixture[0], name="c4"), mixture[1]])[0].load_state_dict(state_of(ranks))
    with pytest.raises(DataError, match=r"no source of the checkpoint: the run has few, many, the checkpoint has c4"):
        make_ranks(1, mixture)[0].load_state_dict(state_of(ranks))
    with pytest.raises(DataError, match="lacks stream 1"):
        make_ranks(1, corpus)[0].load_state_dict(ranks[0].state_dict())


def test_other_data_under_the_same_names(make_ranks, corpus, tmp_path):
    """A position in shards of other content is refused; the same data may move, also to a store that has no samples."""
    state = state_of(make_ranks(1, corpus))
    moved = shutil.copytree(corpus, tmp_path / "moved")
    make_ranks(1, moved)[0].load_state_dict(state)
    make_ranks(1, moved)[0].load_state_dict({**state, "contents": {}})
    shard = next(path for path in sorted(moved.rglob("*train*")) if path.is_file())
    content = shard.read_bytes()
    flipped = bytes([content[-8] ^ 1])  # of the text's checksum: the size stays
    for other in (content[:-8] + flipped + content[-7:], content + gzip.compress(b'{"text": "w1"}\n')):
        shard.write_bytes(other)
        with pytest.raises(DataError, match="has shards of the same names, but of other content, than in the check"):
            make_ranks(1, moved)[0].load_state_dict(state)


def test_sequences_and_epochs_of_each_source_are_counted(make_ranks, mixture):
    """Counts are those of all ranks, survive a resume, and a cap on a source's epochs ends the data."""
    capped = [replace(mixture[0], max_epochs=2), mixture[1]]
    ranks, single = make_ranks(4, capped), make_ranks(1, capped)[0]
    while not ranks[0].is_end(state_of(ranks)):
        draw(ranks)
        ranks = make_ranks(4, capped, state=state_of(ranks))
    while single.state_dict()["sequences"] < ranks[0].state_dict()["sequences"]:
        assert not single.is_spent
        draw([single])
    counts = ranks[0].sequences_by_source
    assert {rank.sequences_by_source == counts for rank in ranks} == {True}
    assert counts == single.sequences_by_source
    assert sum(counts.values()) == ranks[0].state_dict()["sequences"]
    assert [sum(each) for each in zip(*(rank.finished_epochs() for rank in ranks), strict=True)] == (
        single.finished_epochs()
    )
    assert single.finished_epochs()[0] == 48
    assert single.is_spent
    assert all(rank.is_spent for rank in ranks)
    assert not make_ranks(1, mixture, state=state_of(ranks))[0].is_spent


def test_states_of_different_moments(make_ranks, corpus):
    """Merging positions of ranks at different steps is refused."""
    first, second = make_ranks(2, corpus)
    first.next_batch()
    with pytest.raises(ValueError, match="ranks 0 and 1 differ in sequences"):
        merge_states([first.state_dict(), second.state_dict()])
