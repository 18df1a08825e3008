"""A mixture changes during a run: no sequence is lost or read twice, and a resume is exact across each change."""

import json
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from math import ceil, log
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError
from podwright_training.data.mixture import Source, data_mixture_of
from podwright_training.data.phased_mixture import MixtureChange, PhasedMixture
from podwright_training.data.resume import merge_states
from podwright_training.data.stream import PackedStream
from podwright_training.loop.mixture_phases import MixturePhases
from podwright_training.loop.progress import RunProgress
from podwright_training.loop.schedule import batch_sequences, sequences_of_steps
from podwright_training.loop.source_ledger import SourceLedger
from podwright_training.model_card import model_card
from podwright_training.run_folder import RunFolder

CONTEXT = 5
STREAMS = 6
SIZES = {"few": 7, "some": 40, "many": 90}  # documents
FIRST = {"few": 1, "some": 101, "many": 201}  # the first document's word
MOST_DEVIATION = (
    12  # Sequences by which a source may differ from its share in one phase, as test_mixture_is_even has it.
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return three sources of different sizes; each document repeats one word of its own."""
    made = []
    for name, size in SIZES.items():
        folder = tmp_path_factory.mktemp(name)
        numbers = range(FIRST[name], FIRST[name] + size)
        lines = [json.dumps({"text": " ".join([f"w{number}"] * (1 + number % 9))}) for number in numbers]
        (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "validation.jsonl").write_text(json.dumps({"text": "w900"}) + "\n")
        made.append(Source(name=name, dataset=str(folder)))
    return made


def open_ranks(sources, world_size, tokenizer, *, changes=(), state=None, batch=12):
    ranks = [
        PackedStream(
            sources, split="train", tokenizer=tokenizer, context_width=CONTEXT, rank=rank, world_size=world_size,
            local_batch_size=batch // world_size, streams=STREAMS, checked=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    for rank in ranks:
        if state:
            rank.load_state_dict(state)
        rank.change_mixture(changes)
    return ranks


def draw(ranks):
    """Return the sequences of the next global batch, each with its global number: their tokens, unpadded."""
    drawn = {}
    for rank in ranks:
        batch = rank.next_batch()
        for number, tokens_T, labels_T in zip(rank.own_sequences(), batch.tokens_BT, batch.labels_BT, strict=True):
            length = int((labels_T >= 0).sum())
            drawn[number] = [int(tokens_T[0]), *labels_T[:length].tolist()] if length else []
    return [drawn[number] for number in sorted(drawn)]


def state_of(ranks):
    return json.loads(json.dumps(merge_states([rank.state_dict() for rank in ranks])))


def source_of(sequence):
    word = next(token for token in sequence if token)
    return list(FIRST)[bisect_right(list(FIRST.values()), word) - 1]


def bound(begin, end):
    """Return how far a source may differ from its share in the sequences of one phase.

    A row of sequences, one of each stream, has the points of a multiple of the golden ratio, shifted from row to row.
    Any arc has its share of n such points with an error of at most 3 + 3.52 ln n (Kuipers and Niederreiter, Uniform
    Distribution of Sequences, theorem 2.3.4, for partial quotients of 1), and errors of rows add up at worst.
    """
    rows = ceil(end / STREAMS) - begin // STREAMS
    return rows * (3 + 3.52 * log(STREAMS))


weights = st.dictionaries(st.sampled_from(list(SIZES)), st.integers(1, 8), min_size=1)
schedules = st.lists(st.tuples(st.integers(1, 100), weights), max_size=3, unique_by=lambda change: change[0]).map(
    sorted
)


@settings(max_examples=25, deadline=None)
@given(
    first_weights=weights,
    later=schedules,
    stops=st.lists(st.tuples(st.sampled_from([1, 2, 3, 6]), st.integers(0, 5)), min_size=1, max_size=3),
)
def test_no_sequence_is_lost_or_read_twice(sources, word_tokenizer, first_weights, later, stops):
    """Any phases and stops read the batches of an undisturbed run, each source in its own order, in its shares."""
    weighted = [replace(source, weight=first_weights.get(source.name, 0)) for source in sources]
    changes = [MixtureChange(begin, chosen) for begin, chosen in later]
    undisturbed = open_ranks(weighted, 1, word_tokenizer, changes=changes)
    state, sequences = None, []
    for world_size, batches in stops:
        ranks = open_ranks(weighted, world_size, word_tokenizer, changes=changes, state=state)
        for _ in range(batches):
            sequences += draw(ranks)
            assert sequences[-12:] == draw(undisturbed)
        state = state_of(ranks)
        assert state == state_of(undisturbed)
    counts = _check_shares(sequences, [(0, first_weights), *later])
    assert state["drawn"] == {name: counts[name] for name in SIZES}
    _check_documents(sequences, undisturbed[0])
    for source in sources:  # Without any mixture, a stream reads the same sequences of a source in the same order.
        _check_order(source, sequences, word_tokenizer)


def _check_shares(sequences, phases):
    """Check the sequences of each phase; return those of each source."""
    begun = [phase for phase in phases if phase[0] < len(sequences)]
    ends = [begin for begin, _ in begun[1:]] + [len(sequences)]
    for (begin, chosen), end in zip(begun, ends, strict=False):
        part = sequences[begin:end]
        counts = Counter(map(source_of, part))
        assert set(counts) <= set(chosen)
        for name, weight in chosen.items():
            deviation = abs(counts[name] - len(part) * weight / sum(chosen.values()))
            assert deviation <= min(MOST_DEVIATION, bound(begin, end))
    return Counter(map(source_of, sequences))


def _check_documents(sequences, stream):
    """Check the counts of documents, as each ends with the token 0, and that an epoch has each document once."""
    ended = Counter()
    for sequence in sequences:
        ended[source_of(sequence)] += sequence.count(0)
    assert stream.documents_read() == [ended[name] for name in SIZES]


def _check_order(source, sequences, tokenizer):
    by_stream = {stream: [] for stream in range(STREAMS)}
    for number, sequence in enumerate(sequences):
        if source_of(sequence) == source.name:
            by_stream[number % STREAMS].append(sequence)
    row_count = max(map(len, by_stream.values()))
    (alone,) = open_ranks([source], 1, tokenizer, batch=STREAMS)
    expected = [draw([alone]) for _ in range(row_count)]
    for stream, own in by_stream.items():
        assert own == [batch[stream] for batch in expected[: len(own)]]


@settings(max_examples=15, deadline=None)
@given(later=schedules, data=st.data())
def test_an_epoch_is_each_document_once_across_changes(sources, word_tokenizer, later, data):
    """A source that may be read twice has each document twice, and each token of it, whatever the phases."""
    name = data.draw(st.sampled_from(["few", "some"]))
    limited = [replace(source, max_epochs=2 if source.name == name else None) for source in sources]
    changes = [MixtureChange(begin, chosen) for begin, chosen in [*later, (101, {name: 1})]]
    world_size = data.draw(st.sampled_from([1, 2, 3]))
    ranks = open_ranks(limited, world_size, word_tokenizer, changes=changes)
    words = Counter()
    while not ranks[0].is_end(state_of(ranks)) or state_of(ranks)["sequences"] <= 101:
        words.update(token for sequence in draw(ranks) for token in sequence)
        if data.draw(st.integers(0, 4)) == 0:
            world_size = data.draw(st.sampled_from([1, 2, 3]))
            ranks = open_ranks(limited, world_size, word_tokenizer, changes=changes, state=state_of(ranks))
    numbers = range(FIRST[name], FIRST[name] + SIZES[name])
    assert {number: words[number] for number in numbers} == {number: 2 * (1 + number % 9) for number in numbers}
    read = [sum(counts) for counts in zip(*(rank.documents_read() for rank in ranks), strict=True)]
    assert read[list(SIZES).index(name)] == 2 * SIZES[name]


def test_sources_come_and_go_between_starts(sources, word_tokenizer):
    """A source that a resume leaves out continues when it comes back, also by another name; a new one begins."""
    few, some, many = sources
    ranks = open_ranks([few, some], 2, word_tokenizer)
    seen = [sequence for _ in range(3) for sequence in draw(ranks)]
    state = state_of(ranks)
    ranks = open_ranks([some, many], 3, word_tokenizer, state=state)
    assert ranks[0].changed_sources(state) == (["many"], ["few"])
    seen += [sequence for _ in range(3) for sequence in draw(ranks)]
    between = state_of(ranks)
    assert between["drawn"]["few"] == state["drawn"]["few"]
    assert all(between["streams"][stream]["few"] == state["streams"][stream]["few"] for stream in state["streams"])
    renamed = replace(few, name="small")
    ranks = open_ranks([many, renamed, some], 1, word_tokenizer, state=between)
    assert ranks[0].changed_sources(between) == ([], [])
    seen += [sequence for _ in range(3) for sequence in draw(ranks)]
    assert ranks[0].sequences_by_source["small"] > state["drawn"]["few"]
    for source in sources:
        _check_order(source, seen, word_tokenizer)


def test_a_change_that_would_read_documents_again_is_refused(sources, word_tokenizer):
    """Files that a run reads cannot be added as another source, nor continue one of two that had them."""
    few, some, _ = sources
    state = state_of(open_ranks([few, some], 1, word_tokenizer))
    with pytest.raises(DataError, match="data source again has the files of few, which would be read again: r"):
        open_ranks([few, some, replace(few, name="again")], 1, word_tokenizer, state=state)
    twice = state_of(open_ranks([few, replace(few, name="twin"), some], 1, word_tokenizer))
    with pytest.raises(DataError, match="data source new has the files of few and of twin in the checkpoint: g"):
        open_ranks([replace(few, name="new"), some], 1, word_tokenizer, state=twice)


def test_a_source_that_pauses_does_not_end_the_run(sources, word_tokenizer):
    """``max_epochs`` ends a run only while the source is read."""
    limited = [replace(sources[0], max_epochs=1), sources[1]]
    (stream,) = open_ranks(limited, 1, word_tokenizer)
    while not stream.is_spent:
        stream.next_batch()
    state = state_of([stream])
    assert stream.is_end(state)
    (stream,) = open_ranks([replace(limited[0], weight=0), limited[1]], 1, word_tokenizer, state=state)
    assert (stream.is_end(state), stream.is_spent, stream.is_wholly_spent) == (False, False, False)


@pytest.mark.slow
def test_worker_processes_follow_each_change(sources, word_tokenizer):
    """Workers read ahead by the weights that are planned, and begin anew when the plan changes."""
    later_plan = [MixtureChange(45, {"many": 1}), MixtureChange(60, {"few": 1, "many": 2})]
    plans = [[MixtureChange(20, {"some": 1})], later_plan]
    seen = []
    for workers in (0, 2):
        stream = PackedStream(
            sources, split="train", tokenizer=word_tokenizer, context_width=CONTEXT, rank=0, world_size=1,
            local_batch_size=12, streams=STREAMS, workers=workers,
        )  # fmt: skip
        seen.append([])
        for plan in plans:
            stream.change_mixture(plan)
            seen[-1] += [draw([stream]) for _ in range(3)]
        stream.close()
    assert seen[0] == seen[1]


def test_phases_begin_at_their_steps_after_a_rollback(sources, word_tokenizer, tmp_path):
    """Steps that are repeated have the weights of their phase, on sequences that no step has had; so has the ledger."""
    names = [source.name for source in sources]
    lines = [f"{source.name}: {{dataset: {source.dataset}}}\n" for source in sources]
    phases = "phases:\n- {from_step: 4, weights: {few: 1}}\n- {from_step: 6, weights: {some: 1}}\n"
    config = mixture_file(tmp_path, "".join(lines) + phases)
    events = []
    run = SimpleNamespace(
        config=replace(config, global_batch_size=12), progress=RunProgress(9), is_save_due=False,
        metrics=SimpleNamespace(write=events.append),
    )  # fmt: skip
    (stream,) = open_ranks(sources, 1, word_tokenizer)
    plan, ledger = MixturePhases(run, stream, data_size=1), SourceLedger(run, stream, None)
    plan.plan()
    ledger.start(added=[], removed=[])
    read = []
    for step in (1, 2, 3, 4, 5, 3, 4, 5, 6):
        if step < run.progress.step:
            run.progress.step = step - 1
            plan.plan()
        read.append({source_of(sequence) for sequence in draw([stream])})
        run.progress.sequences += 12
        ledger.before_update(step)
        run.progress.step = step
    everything = set(names)
    assert read == [everything] * 3 + [{"few"}] * 2 + [everything] + [{"few"}] * 2 + [{"some"}]
    assert [(event.step, event.from_sequence, list(event.weights)) for event in events] == [
        (0, 0, names), (4, 36, ["few"]), (3, 60, names), (4, 72, ["few"]), (6, 96, ["some"])
    ]  # fmt: skip


def test_when_a_source_was_read_once():
    """The estimate follows the phases, and is absent of a source that the last phase does not read."""
    changes = [MixtureChange(0, {"a": 1}), MixtureChange(10, {"a": 1, "b": 1}), MixtureChange(30, {"a": 1, "c": 3})]
    mixture = PhasedMixture(changes, ["a", "b", "c"], streams=1)
    assert [mixture.sequences_until(0, count) for count in (5, 10, 15, 21)] == [5, 10, 20, 34]
    assert [mixture.sequences_until(1, count) for count in (10, 11)] == [30, None]
    assert mixture.sequences_until(2, 3) == 34
    assert mixture.counts(range(40)) == [sum(mixture.source(g) == index for g in range(40)) for index in range(3)]


def test_the_sequences_of_steps_follow_the_ramp():
    """They are those of ``batch_sequences``, added up."""
    config = TrainConfig(global_batch_size=24, batch_ramp=0.3, max_steps=20, train_batch_size=2)
    for begin, end in ((1, 1), (1, 5), (3, 12), (9, 20)):
        total = sum(batch_sequences(step, config, 2) for step in range(begin, end))
        assert sequences_of_steps(range(begin, end), config, 2) == total


def mixture_file(folder, text):
    path = folder / "mixture.yaml"
    path.write_text(text)
    return TrainConfig(data_mixture=str(path), mixture_temperature=2)


def test_phases_of_a_file(tmp_path):
    """A list ``phases`` has the weights from a step or token on, at the run's temperature; weight 0 pauses."""
    config = mixture_file(
        tmp_path,
        "web: {dataset: o/web}\nmath: {dataset: o/math, weight: 0}\n"
        "phases:\n- {from_tokens: 2e9, weights: {math: 4, web: 16}}\n"
        "- {from_tokens: 3000000000, weights: {math: 1, web: 0}}\n",
    )
    mixture = data_mixture_of(config)
    assert [(source.name, source.weight) for source in mixture.sources] == [("web", 1), ("math", 0)]
    assert [(phase.from_step, phase.from_tokens) for phase in mixture.phases] == [(None, 2 * 10**9), (None, 3 * 10**9)]
    assert [list(phase.weights.items()) for phase in mixture.phases] == [[("web", 4), ("math", 2)], [("math", 1)]]
    named = data_mixture_of(mixture_file(tmp_path, "phases: {dataset: o/phases}"))
    assert [source.name for source in named.sources] == ["phases"]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ("[{from_step: 5}]", "3:10: phase 1: no weights: name the sources that this phase reads"),
        ("[{from_step: 5, weights: {}}]", "3:25: phase 1: no weights"),
        ("[{from_step: 5, weights: {web: 0}}]", "3:25: phase 1: weights: each is 0, so that this phase r"),
        ("[{from_step: 5, weights: {web: -1}}]", "3:40: phase 1: weights: web: got -1, need a number of at least 0"),
        ("[{from_step: 5, weights: {coed: 1}}]", "3:35: phase 1: weights: the mixture has no source coed; did you me"),
        ("[{weights: {web: 1}}]", "3:10: phase 1: got no start, need either from_step or from_tokens"),
        ("[{from_step: 5, from_tokens: 5, weights: {web: 1}}]", "3:10: phase 1: got from_step and from_tokens, need e"),
        ("[{from_step: 1, weights: {web: 1}}]", "3:22: phase 1: from_step: got 1, need a whole number of at least 2"),
        ("[{from_tokens: 1.5, weights: {web: 1}}]", "3:24: phase 1: from_tokens: got 1.5, need a whole number of at l"),
        ("[{from_step: 5, weight: 3, weights: {web: 1}}]", "3:25: phase 1: unknown key weight; keys: from_step, fr"),
        ("[5]", "3:10: phase 1: got 5, need {from_step: …, weights: {name: weight, …}}"),
        (
            "\n- {from_step: 500, weights: {web: 1}}\n- {from_step: 400, weights: {code: 1}}",
            "5:15: phase 2: from_step 400 is not after 500 of the phase before: list phases in the order",
        ),
        (
            "\n- {from_step: 500, weights: {web: 1}}\n- {from_tokens: 1e9, weights: {code: 1}}",
            "5:17: phase 2: from_tokens, but the phase before has from_step: use one of them in all phases",
        ),
    ],
)  # fmt: skip
def test_wrong_phases_are_named_with_their_place(tmp_path, phases, message):
    """Each problem has the file, the line and the column of the value, and says what is allowed."""
    config = mixture_file(tmp_path, f"web: {{dataset: o/web}}\ncode: {{dataset: o/code}}\nphases: {phases}\n")
    with pytest.raises(DataError) as caught:
        data_mixture_of(config)
    assert f"{config.data_mixture}:{message}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "temperature"),
    [
        ("web: {dataset: o/web, weight: 1e308}\nnotes: {dataset: o/notes, weight: 1e308}\n", 1.0),
        (f"web: {{dataset: o/web, weight: 1{'0' * 400}}}\nnotes: {{dataset: o/notes}}\n", 1.0),
        ("web: {dataset: o/web, weight: 1.2e12}\nnotes: {dataset: o/notes}\n", 0.03),
        ("web: {dataset: o/web, weight: 1e-20}\nnotes: {dataset: o/notes}\n", 0.03),
        ("web: {dataset: o/web}\nphases: [{from_step: 5, weights: {web: 5e-324}}]\n", 1.0),
    ],
)
def test_weights_that_no_sum_can_hold_are_refused(tmp_path, text, temperature):
    """One line names the source."""
    config = replace(mixture_file(tmp_path, text), mixture_temperature=temperature)
    with pytest.raises(DataError, match=r"^data_mixture: web: weight: got .*, which at mixture_temperature") as caught:
        data_mixture_of(config)
    assert len(str(caught.value)) < 300


def test_a_mixture_without_weights_is_refused(tmp_path):
    """Something must be read before the first phase."""
    config = mixture_file(tmp_path, "web: {dataset: o/web, weight: 0}\nphases: [{from_step: 5, weights: {web: 1}}]\n")
    with pytest.raises(DataError, match=r"mixture\.yaml:1:31: the weight of each source is 0"):
        data_mixture_of(config)


def test_a_run_through_a_change_and_a_resume(tiny_flags, text_dataset, tmp_path, capsys, call_ranks):
    """A run whose mixture changes reads the same batches with a stop; the ledger says which, and replay finds them."""
    texts = [json.dumps({"text": f"the node reads file {number} and then writes"}) for number in range(200)]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "train.jsonl").write_text("\n".join(texts[:190]) + "\n")
    (tmp_path / "notes" / "validation.jsonl").write_text("\n".join(texts[190:]) + "\n")
    web = {"dataset": str(text_dataset), "weight": 3}
    content = {
        "web": web,
        "notes": {"dataset": "notes", "dataset_config_name": "none", "weight": 0},
        "phases": [
            {"from_step": 3, "weights": {"web": 1, "notes": 1}},
            {"from_step": 6, "weights": {"notes": 1}},
        ],
    }
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(yaml.safe_dump(content, sort_keys=False))
    options = {"ranks": 1, "data_mixture": mixture, "max_steps": 8, "checkpoint_freq": 2, "keep_checkpoints": 9}
    options |= {"hidden_size": 16, "intermediate_size": 16, "num_layers": 1}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert main(["train", *tiny_flags(whole, **options)]) == 0
    changes = [
        (event["step"], event["from_sequence"], event["weights"]) for event in logged(RunFolder(whole), "mixture")
    ]
    assert changes == [(0, 0, {"web": 3}), (3, 16, {"web": 1, "notes": 1}), (6, 40, {"notes": 1})]
    reads = {event["step"]: event["source_sequences"] for event in logged(RunFolder(whole), "read")}
    assert reads[2] == {"web": 16, "notes": 0}
    assert abs(reads[6]["web"] - 28) <= 2
    assert reads[8] == {"web": reads[6]["web"], "notes": 64 - reads[6]["web"]}
    card = model_card(RunFolder(whole), whole / "checkpoints" / "step-00000008", load_run(RunFolder(whole)))
    assert f"| tokens of web | {32 * reads[8]['web']:,} in 0." in card
    assert main(["train", *tiny_flags(halves, **options | {"max_steps": 4, "warmup": 0})]) == 0
    on_two_ranks = options | {"ranks": 2, "warmup": 0}
    status, output = call_ranks(2, "train", *tiny_flags(halves, **on_two_ranks))
    assert status == 0, output
    digests = [[event["batch_digest"] for event in logged(RunFolder(run), "train")] for run in (whole, halves)]
    assert digests[0] == digests[1]
    removed = {"notes": {**content["notes"], "weight": 1}}
    mixture.write_text(yaml.safe_dump(removed))
    assert main(["train", *tiny_flags(halves, **options | {"max_steps": 10, "warmup": 0})]) == 0
    *_, last = logged(RunFolder(halves), "mixture")
    assert (last["step"], last["weights"], last["added"], last["removed"]) == (8, {"notes": 1}, [], ["web"])
    mixture.write_text(yaml.safe_dump({**removed, "web": {**web, "weight": 0}}))
    capsys.readouterr()
    assert main(["replay", "--run-dir", str(halves), "--step", "5"]) == 0
    assert "step 5" in capsys.readouterr().out


def test_a_replay_before_the_run_became_a_mixture(tiny_flags, text_dataset, tmp_path, capsys):
    """A run of one source has logged no weights: replay reads the source that no start has added."""
    texts = [json.dumps({"text": f"the node reads file {number} and then writes"}) for number in range(200)]
    (tmp_path / "notes").mkdir()
    for name, part in (("train", texts[:190]), ("validation", texts[190:])):
        (tmp_path / "notes" / f"{name}.jsonl").write_text("\n".join(part))
    options = {"ranks": 1, "checkpoint_freq": 9, "hidden_size": 16, "intermediate_size": 16, "num_layers": 1}
    run = tmp_path / "run"
    assert main(["train", *tiny_flags(run, **options, max_steps=2)]) == 0
    notes = {"dataset": "notes", "dataset_config_name": "", "weight": 3}
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump({"web": {"dataset": str(text_dataset)}, "notes": notes}))
    mixture = {"data_mixture": tmp_path / "mixture.yaml", "max_steps": 4, "warmup": 0}
    assert main(["train", *tiny_flags(run, **options | mixture)]) == 0
    capsys.readouterr()
    for step in ("2", "4"):
        assert main(["replay", "--run-dir", str(run), "--step", step]) == 0, capsys.readouterr().err
