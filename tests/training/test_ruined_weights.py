"""Weights that an update has ruined: their checkpoint does not count, and older ones do."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from podwright_common.exit_status import DIVERGED
from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint import checkpoint_writer, manifest, step_folder, weights_check
from podwright_training.checkpoint.weights_check import LIMIT, complaint, measure, rms
from podwright_training.json_text import to_json
from podwright_training.loop.guard import MOST_ROLLBACKS, Guard, Rollbacks
from podwright_training.loop.validation import Validation
from podwright_training.run_folder import RunFolder

RUINOUS = {"lr": 1e38, "min_lr": 1e38, "warmup": 0}
ENDS = (DIVERGED, 2)  # whichever sees it first: the check of a save, or the guard of the next step
EVERY_STEP = {"checkpoint_freq": 1, "keep_checkpoints": 10, "ranks": 1}
numbers = st.floats(-1e3, 1e3)
json_values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def _strict(path):
    return [json.loads(line, parse_constant=_refuse) for line in path.read_text().splitlines()]


def _manifest(run_dir, step):
    path = run_dir / "checkpoints" / f"step-{step:08d}" / manifest.MANIFEST
    return json.loads(path.read_text(), parse_constant=_refuse)


def _train(tiny_flags, run_dir, **options):
    return main(["train", *tiny_flags(run_dir, **(EVERY_STEP | options))])


@pytest.fixture
def ruined(tiny_flags, tmp_path, monkeypatch):
    """A run of two good checkpoints and the last of three, whose third step ruined the weights."""
    assert _train(tiny_flags, tmp_path, max_steps=2) == 0
    with monkeypatch.context() as blind:
        blind.setattr(Validation, "after_step", lambda *_: None)
        assert _train(tiny_flags, tmp_path, max_steps=3, **RUINOUS) == DIVERGED
    return tmp_path


@pytest.mark.slow
def test_a_run_goes_on_from_the_last_good_checkpoint(ruined, tiny_flags):
    """The ruined one is marked in its manifest; it is not resumed from, exported or counted."""
    assert _manifest(ruined, 3)["bad"]
    assert "bad" not in _manifest(ruined, 2)
    assert step_folder.newest(ruined / "checkpoints").name == "step-00000002"
    assert _train(tiny_flags, ruined, max_steps=4) == 0
    start = list(logged(RunFolder(ruined), "start"))[-1]
    assert start["resumed_from"].endswith("step-00000002")
    assert "bad" not in _manifest(ruined, 4)
    assert all(_strict(RunFolder(ruined).metrics))


@pytest.mark.slow
@pytest.mark.parametrize("async_checkpoints", [True, False])
def test_a_ruined_checkpoint_is_marked_and_takes_no_good_ones_place(tiny_flags, tmp_path, async_checkpoints, caplog):
    """In the middle of a run, with room for one checkpoint, the last good one stays, and a rollback returns to it."""
    options = {"keep_checkpoints": 1, "async_checkpoints": async_checkpoints, "validation_freq": 100}
    assert _train(tiny_flags, tmp_path, max_steps=2, **options) == 0
    assert _train(tiny_flags, tmp_path, max_steps=9, **options, **RUINOUS) in ENDS
    bad = _manifest(tmp_path, 3)["bad"]
    assert "root mean square is" in bad or "not finite" in bad
    assert step_folder.newest(tmp_path / "checkpoints").name == "step-00000002"
    assert f"step-00000003 is marked bad: {bad}; skipped" in caplog.text
    assert _train(tiny_flags, tmp_path, max_steps=4, guard_policy="rollback", **options) == 0
    assert [path.name for path in step_folder.intact(tmp_path / "checkpoints")] == ["step-00000004"]


@pytest.mark.slow
def test_when_all_checkpoints_are_bad_a_line_says_so(tiny_flags, tmp_path, capsys):
    """A start does not begin anew beside them."""
    assert _train(tiny_flags, tmp_path, max_steps=3, validation_freq=100, **RUINOUS) in ENDS
    assert _train(tiny_flags, tmp_path, max_steps=3) == DIVERGED
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: no checkpoint in {tmp_path / 'checkpoints'} is good; the newest is marked bad: ")
    assert "lower --lr" in line


@pytest.mark.slow
def test_ruined_weights_of_an_older_version_are_found_when_they_are_loaded(tiny_flags, tmp_path, monkeypatch, caplog):
    """Its manifests say nothing of the weights."""
    with monkeypatch.context() as older:
        older.setattr(
            checkpoint_writer, "commit_checked", lambda *arguments: checkpoint_writer.commit(*arguments[:3]) or ""
        )
        assert _train(tiny_flags, tmp_path, max_steps=2) == 0
        older.setattr(Validation, "after_step", lambda *_: None)
        assert _train(tiny_flags, tmp_path, max_steps=3, **RUINOUS) == 0
    assert _train(tiny_flags, tmp_path, max_steps=4) == 0
    assert f"checkpoint {tmp_path / 'checkpoints' / 'step-00000003'} is of no use: " in caplog.text
    assert list(logged(RunFolder(tmp_path), "start"))[-1]["step"] == 2


@pytest.mark.slow
def test_a_rollback_that_comes_back_to_the_same_state_goes_further_back(tiny_flags, tmp_path, monkeypatch):
    """A checkpoint that looks good, and from which each first step is bad, is left for the one before it."""
    with monkeypatch.context() as blind:
        blind.setattr(weights_check, "complaint", lambda *_: "")
        blind.setattr(Validation, "after_step", lambda *_: None)
        assert _train(tiny_flags, tmp_path, max_steps=2) == 0
        assert _train(tiny_flags, tmp_path, max_steps=3, **RUINOUS) == 0
    assert _train(tiny_flags, tmp_path, max_steps=5, guard_policy="rollback") == 0
    guards = [event["checkpoint"][-1] for event in logged(RunFolder(tmp_path), "guard") if event["checkpoint"]]
    assert guards == ["3"] * MOST_ROLLBACKS + ["2"]


@pytest.mark.slow
def test_rollbacks_end_when_no_checkpoint_helps(tiny_flags, tmp_path, capsys):
    """One line names those that were tried and what to do."""
    assert _train(tiny_flags, tmp_path, max_steps=2) == 0
    options = {"guard_policy": "rollback", "max_steps": 4, "validation_freq": 100}
    assert _train(tiny_flags, tmp_path, **options, **RUINOUS) == DIVERGED
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"no checkpoint helps, {MOST_ROLLBACKS} rollbacks each to step-00000001, step-00000002 did not" in line
    assert step_folder.newest(tmp_path / "checkpoints").name == "step-00000002"


@pytest.mark.slow
def test_ruined_weights_take_no_place_in_memory(tiny_flags, tmp_path, monkeypatch, capsys):
    """They are seen when they are saved, also where the loss shows nothing, and no folder gets its name."""
    monkeypatch.setattr(Guard, "check", lambda *_, **__: None)
    options = {"checkpoint_freq": 100, "memory_checkpoint_freq": 1, "memory_checkpoint_dir": tmp_path / "memory"}
    (tmp_path / "memory").mkdir()
    flags = {"max_steps": 9, "validation_freq": 100, **options, **RUINOUS}
    assert _train(tiny_flags, tmp_path / "run", **flags) == DIVERGED
    assert "the weights of step 1 are of no use: " in capsys.readouterr().err
    assert not list((tmp_path / "memory").rglob(manifest.MANIFEST))


def test_a_validation_loss_that_is_no_number_is_a_failure(tiny_flags, tmp_path, monkeypatch, capsys):
    """In the last step, too: one line, a status of its own, null in the metrics, and nothing is saved of it."""
    monkeypatch.setattr("podwright_training.parallel.ParallelModel.evaluate", lambda *_: torch.tensor(math.nan))
    assert _train(tiny_flags, tmp_path, max_steps=2, checkpoint_freq=100) == DIVERGED
    assert "error: step 2: the validation loss is no number; " in capsys.readouterr().err
    (event,) = [event for event in _strict(RunFolder(tmp_path).metrics) if event["event"] == "validation"]
    assert event["loss"] is None
    (read,) = logged(RunFolder(tmp_path), "validation")
    assert math.isnan(read["loss"])
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    assert main(["report", "--run-dir", str(tmp_path), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=_refuse)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2, "train_batch_size": 8}])
def test_the_size_of_weights_is_the_same_in_any_layout(tiny_flags, tmp_path, call_ranks, options):
    """Manifests of one rank and of two have the same root mean square, as replicated parts count once."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert _train(tiny_flags, alone, max_steps=1, lr=1e-9, min_lr=1e-9) == 0
    flags = tiny_flags(both, max_steps=1, checkpoint_freq=1, lr=1e-9, min_lr=1e-9, **options)
    status, output = call_ranks(2, "train", *flags)
    assert status == 0, output
    sizes = [_manifest(each, 1)["weights"]["rms"] for each in (alone, both)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


@given(st.lists(numbers, min_size=1, max_size=40), st.data())
def test_the_size_is_that_of_all_parts(values, data):
    """However weights are divided among ranks, the size is that of the whole."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    pieces = [values[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    parts = [measure({"model": {"weight": torch.tensor(piece, dtype=torch.float64)}}) for piece in pieces]
    expected = math.sqrt(sum(value * value for value in values) / len(values))
    assert rms(parts) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(
    st.floats(1e-3, 10), st.lists(st.floats(0.5, 2), min_size=1, max_size=8), st.floats(1 / LIMIT, LIMIT), st.booleans()
)
def test_only_a_jump_is_a_complaint(size, spread, factor, is_up):
    """A size within the limit of its history is fine, and one beyond it is not; NaN anywhere never is."""
    history = [size * each for each in spread]
    inside = measure({"model": {"weight": torch.full((4,), size * min(max(factor, 3 / LIMIT), LIMIT / 3))}})
    beyond = size * 2 * LIMIT * 1.01 if is_up else size / (2 * LIMIT * 1.01)
    outside = measure({"model": {"weight": torch.full((4,), beyond)}})
    assert not complaint([inside], history)
    assert complaint([outside], history)
    broken = measure({"model": {"a": torch.ones(4)}, "optimizer": {"b": torch.tensor([0.0, math.nan])}})
    assert complaint([inside, broken], history) == "optimizer.b is not finite"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9))))
def test_rollbacks_help_while_they_get_further(history):
    """A checkpoint is left out only after several rollbacks that came no further than one before."""
    rollbacks, expected = Rollbacks(), {"a": [], "b": []}
    for name, step in history:
        rollbacks.add(Path(name), bad_step=step)
        steps = expected[name]
        steps[:] = [step] if not steps or step > steps[0] else [*steps, step]
        assert rollbacks.do_not_help(Path(name)) == (len(steps) >= MOST_ROLLBACKS)
    rollbacks.forget(Path("a"))
    assert not rollbacks.do_not_help(Path("a"))


@given(json_values)
def test_json_has_no_nan(value):
    """Any strict reader takes it, and finite values are unchanged."""
    text = to_json(value)
    read = json.loads(text, parse_constant=_refuse)
    if "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value):
        assert read == json.loads(json.dumps(value))
