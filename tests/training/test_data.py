"""The packed stream: one global order, whatever the number of ranks, and exact positions."""

import gzip
import json
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from podwright_training import data
from podwright_training.data import DataError, PackedStream, find_shards, load_tokenizer, merge_states

CONTEXT = 7
END = 0


@pytest.fixture(scope="module")
def word_tokenizer():
    """Every document is a run of its own number, so tokens tell which document they came from."""
    words = {"<end>": END, **{f"w{number}": number for number in range(1, 1000)}}
    model = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>", model_max_length=16)


def write_shard(folder, name, lines):
    """A shard with these lines."""
    (folder / "en").mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "en" / name, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def document(number):
    """A record whose text repeats one word."""
    return json.dumps({"text": " ".join([f"w{number}"] * (1 + number % 13)), "url": "", "timestamp": ""})


def write_corpus(folder, *, shards, documents_per_shard=20):
    """Training shards with documents 1, 2, …, and one validation shard."""
    for shard in range(shards):
        numbers = range(1 + shard * documents_per_shard, 1 + (shard + 1) * documents_per_shard)
        write_shard(folder, f"c4-train.{shard:05d}-of-01024.json.gz", map(document, numbers))
    write_shard(folder, "c4-validation.00000-of-00008.json.gz", map(document, range(900, 940)))
    return folder


@pytest.fixture(scope="module", params=[2, 5, 12, 20], ids="{} shards".format)
def corpus(request, tmp_path_factory):
    """120 training documents."""
    return write_corpus(tmp_path_factory.mktemp("c4"), shards=request.param, documents_per_shard=120 // request.param)


@pytest.fixture
def make_ranks(corpus, word_tokenizer):
    """Builds the streams of all ranks of a job with 12 sequences per global batch."""

    def make(world_size, *, folder=corpus, streams=12, split="train", batch=12, state=None):
        ranks = [
            PackedStream(
                dataset=str(folder), dataset_config_name="en", split=split, tokenizer=word_tokenizer, rank=rank,
                context_width=CONTEXT, world_size=world_size, local_batch_size=batch // world_size, streams=streams,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        for rank in ranks if state else ():
            rank.load_state_dict(state)
        return ranks

    return make


def draw(ranks):
    """The next global batch in global order: rank r holds the sequences that are r modulo the number of ranks."""
    return torch.stack([rank.next_batch() for rank in ranks], dim=1).flatten(0, 1).tolist()


def state_of(ranks):
    """What a checkpoint would hold, after a trip through JSON."""
    return json.loads(json.dumps(merge_states([rank.state_dict() for rank in ranks])))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_order_does_not_depend_on_world_size(make_ranks, world_size):
    """Every global batch is the same for 1, 2, 3 and 4 ranks."""
    one, several = make_ranks(1), make_ranks(world_size)
    assert [draw(one) for _ in range(15)] == [draw(several) for _ in range(15)]


def test_resume_at_other_world_sizes(make_ranks):
    """A run that goes on with another number of ranks, and another, sees what an undisturbed one sees."""
    undisturbed = make_ranks(1)
    expected = [draw(undisturbed) for _ in range(16)]
    seen, state = [], None
    for world_size in (4, 1, 3, 2):
        ranks = make_ranks(world_size, state=state)
        seen += [draw(ranks) for _ in range(4)]
        state = state_of(ranks)
    assert seen == expected


@settings(max_examples=15, deadline=None)
@given(stops=st.lists(st.integers(0, 10), min_size=1, max_size=3), batch=st.sampled_from([1, 2, 5]))
def test_resume_is_exact_anywhere(tmp_path_factory, word_tokenizer, stops, batch):
    """Stopping and resuming at arbitrary sequences loses and repeats no token, over several epochs."""
    folder = tmp_path_factory.getbasetemp() / "resume"
    if not folder.exists():
        write_corpus(folder, shards=3, documents_per_shard=15)
    one = {
        "dataset": str(folder), "dataset_config_name": "en", "split": "train", "tokenizer": word_tokenizer,
        "context_width": CONTEXT, "rank": 0, "world_size": 1, "local_batch_size": batch, "streams": 4,
    }  # fmt: skip
    undisturbed, stream = PackedStream(**one), PackedStream(**one)
    for stop in stops:
        for _ in range(stop):
            assert torch.equal(stream.next_batch(), undisturbed.next_batch())
        state = json.loads(json.dumps(stream.state_dict()))
        stream = PackedStream(**one)
        stream.load_state_dict(state)
        assert stream.state_dict() == state
    assert torch.equal(stream.next_batch(), undisturbed.next_batch())


def documents_in(sequences, streams):
    """Documents of each stream, in order, cut out of its packed tokens; the unfinished last one is left out."""
    for stream in range(streams):
        tokens = [token for sequence in sequences[stream::streams] for token in sequence]
        ends = [-1, *(place for place, token in enumerate(tokens) if token == END)]
        yield [tokens[start + 1 : end] for start, end in pairwise(ends)]


def test_epoch_holds_every_document_once(make_ranks):
    """A stream's epoch is each of its documents once, all streams' are the corpus; the next epoch has another order."""
    ranks = make_ranks(2)
    sequences = [sequence for _ in range(40) for sequence in draw(ranks)]
    owned = Counter()
    for documents in documents_in(sequences, 12):
        assert all(len(set(words)) == 1 and len(words) == 1 + words[0] % 13 for words in documents)
        numbers = [words[0] for words in documents]
        size = len(set(numbers))
        assert len(numbers) >= 2 * size
        owned.update(numbers[:size])
        assert sorted(numbers[size : 2 * size]) == sorted(numbers[:size])
        assert numbers[size : 2 * size] != numbers[:size]
    assert owned == Counter(range(1, 121))


def test_splits_are_disjoint(make_ranks):
    """The validation stream reads the validation shards only."""
    tokens = {token for sequence in draw(make_ranks(1, split="validation")) for token in sequence}
    assert tokens <= {END, *range(900, 940)}


def test_indivisible_world_size(make_ranks):
    """A world size that does not divide the streams is refused with those that do."""
    with pytest.raises(ValueError, match=r"12 data streams .* 5 ranks; allowed world sizes: 1, 2, 3, 4, 6, 12"):
        make_ranks(5)


def test_foreign_state(make_ranks):
    """A position of another number of streams, or of one rank only, is refused with the reasons."""
    ranks = make_ranks(2)
    with pytest.raises(ValueError, match="stream_count is 12 there, 6 here"):
        make_ranks(1, streams=6)[0].load_state_dict(state_of(ranks))
    with pytest.raises(ValueError, match="it lacks stream 1; it lacks stream 3"):
        make_ranks(1)[0].load_state_dict(ranks[0].state_dict())


def test_states_of_different_moments(make_ranks):
    """Positions of ranks that are not at the same step cannot be merged."""
    first, second = make_ranks(2)
    first.next_batch()
    with pytest.raises(ValueError, match="ranks 0 and 1 differ in sequences"):
        merge_states([first.state_dict(), second.state_dict()])


def test_broken_records_are_named_and_skipped(tmp_path, make_ranks, caplog):
    """A record that is no JSON or has no text is logged with its place and left out."""
    write_shard(tmp_path, "c4-train.00000-of-00001.json.gz", [document(1), '{"text": "w', "{}", "[]", document(2)])
    tokens = {token for sequence in draw(make_ranks(1, folder=tmp_path, streams=1)) for token in sequence}
    assert tokens == {END, 1, 2}
    places = sorted(record.getMessage().split(" ")[0] for record in caplog.records)
    shard = tmp_path / "en" / "c4-train.00000-of-00001.json.gz"
    assert places == [f"{shard}:{line}:" for line in (2, 3, 4)]


def test_too_many_broken_records(tmp_path, make_ranks):
    """Data that is broken as a whole stops the run."""
    write_shard(tmp_path, "c4-train.00000-of-00001.json.gz", ["not json"] * (data.MAX_BAD_RECORDS + 1))
    with pytest.raises(DataError, match=f"more than {data.MAX_BAD_RECORDS} broken records"):
        draw(make_ranks(1, folder=tmp_path, streams=1))


def test_too_few_documents(tmp_path, make_ranks):
    """A stream that owns no document is an error, not an endless search."""
    write_shard(tmp_path, "c4-train.00000-of-00001.json.gz", [document(1)])
    with pytest.raises(DataError, match="stream 1 of 2 has no document"):
        draw(make_ranks(1, folder=tmp_path, streams=2))


def test_truncated_shard(tmp_path, make_ranks):
    """A shard cut off in transfer is named."""
    folder = write_corpus(tmp_path, shards=1)
    shard = next((folder / "en").glob("c4-train.*"))
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(DataError, match=f"{shard.name} cannot be read to its end"):
        draw(make_ranks(1, folder=folder, streams=1))


def test_vanished_shard(tmp_path, make_ranks):
    """A shard that disappears after the start is named."""
    folder = write_corpus(tmp_path, shards=1)
    ranks = make_ranks(1, folder=folder, streams=1)
    shard = next((folder / "en").glob("c4-train.*"))
    shard.unlink()
    with pytest.raises(DataError, match=shard.name):
        draw(ranks)


@pytest.mark.parametrize(
    ("dataset", "config", "message"),
    [
        ("/nowhere/c4", "en", "neither an existing folder nor"),
        (".", "xx", r"has no file xx/c4-train\.\*\.json\.gz"),
        ("nowhere/c4", "en", "the Hugging Face hub does not give it to this machine"),
    ],
)
def test_missing_dataset(dataset, config, message, monkeypatch):
    """A dataset that is not there is named together with what was looked for."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=message):
        find_shards(dataset, config, "train")


def test_missing_tokenizer(tmp_path):
    """A tokenizer that is not there is named together with what was looked for."""
    with pytest.raises(DataError, match=r"neither a folder with tokenizer\.json nor"):
        load_tokenizer(str(tmp_path))


def test_tokenizer_without_end_token(corpus):
    """Documents cannot be separated without an end-of-text token."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(DataError, match="no end-of-text token"):
        PackedStream(
            dataset=str(corpus), dataset_config_name="en", split="train", tokenizer=tokenizer, context_width=4, rank=0,
            world_size=1, local_batch_size=1, streams=1,
        )  # fmt: skip
