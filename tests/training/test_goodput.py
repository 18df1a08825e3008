"""Every second of a run belongs to one kind."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.events import CheckpointEvent, EndEvent, MembershipEvent, StartEvent, TrainEvent
from podwright_training.report import summary
from podwright_training.report.goodput import KINDS, account
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder


def start(at, step, **values):
    return StartEvent(elapsed_s=at, step=step, world_size=8, parameters=8 * 10**9, **values)


def train(at, step, *, step_s=1.0, **values):
    return TrainEvent(elapsed_s=at, step=step, loss=3.0, step_s=step_s, **values)


def kinds(*events):
    """The seconds of each kind that has any."""
    return {name: pytest.approx(seconds) for name, seconds in account(events).seconds.items() if seconds > 1e-9}


def test_a_restart_costs_waiting_starting_and_steps_done_twice():
    """Saves and validations count as such; the first step after a start is part of it."""
    first = [start(0, 0, process_s=9), train(13, 10, first_step_s=2, saving_s=2, validating_s=1)]
    assert kinds(*first) == {"restarting": 2, "productive": 8, "saving": 2, "validating": 1}
    again = [start(43, 4, process_s=20), train(53, 14, first_step_s=1)]
    found = {"restarting": 23, "productive": 8 + 9 * 4 / 10, "recomputing": 9 * 6 / 10, "waiting": 10}
    assert kinds(*first, *again) == {**found, "saving": 2, "validating": 1}
    (interruption,) = account([*first, *again]).interruptions
    assert interruption.cause == "not known"
    assert interruption.lost_s == pytest.approx(10 + 20 + 1 + 5.4)


def test_an_elastic_run_says_what_led_to_a_start():
    """The event after the first step divides the gap; what is left of it were a step that no line has, and waiting."""
    cause = {"cause": "rank 3 on node-7 was killed by SIGKILL", "detecting_s": 2, "stopping_s": 1, "waiting_s": 3}
    seconds = {"restarting_s": 1, "loading_s": 1.5, "stepping_s": 1}
    said = MembershipEvent(elapsed_s=21.5, step=9, lost_steps=1, **cause, **seconds)
    events = [start(0, 0), train(10, 10), start(20, 9), train(21, 10), said]
    found = account(events)
    assert kinds(*events) == {
        "productive": 10, "detecting": 3, "waiting": 3 + 0.5, "restarting": 2.5, "recomputing": 1 + 1
    }  # fmt: skip
    assert found.causes() == [("node-7", cause["cause"], 1, pytest.approx(11))]


def membership(at, step, **values):
    """The event of a generation."""
    return MembershipEvent(elapsed_s=at, step=step, lost_steps=0, **values)


def test_a_queue_is_a_wait():
    """Hours in which every host of an elastic run waited for a node are no steps done again."""
    events = [start(0, 0), train(10, 10), start(36_010, 10), train(36_011, 11)]
    events.append(membership(36_011, 10, cause="start", waiting_s=10, restarting_s=5))
    assert kinds(*events) == {"productive": 11, "recomputing": 1, "restarting": 5, "waiting": 36_000 - 6}


def test_generations_in_vain_count():
    """One that did not come to a start has its causes and seconds, too."""
    first = {"cause": "the agent on node-7 was silent for 5.0 s", "detecting_s": 5, "waiting_s": 60, "restarting_s": 20}
    second = {"cause": "rank 1 on node-8 ended with exit status 1", "detecting_s": 1, "waiting_s": 4, "restarting_s": 9}
    events = [start(0, 0), train(10, 10), membership(10, 0, cause="start")]
    events += [membership(95, 10, **first), start(110, 10), train(111, 11), membership(111, 10, **second)]
    assert kinds(*events) == {"productive": 11, "detecting": 6, "waiting": 64, "restarting": 29, "recomputing": 1}
    assert account(events).causes() == [("node-7", first["cause"], 1, 85), ("node-8", second["cause"], 1, 15)]


def test_a_signal_is_a_cause():
    """A run that saved and ended because Slurm asked it to says so."""
    ended = EndEvent(elapsed_s=12, step=10, reason="signal", saving_s=1.5)
    events = [start(0, 0), train(10, 10), ended, start(30, 10)]
    assert [each.cause for each in account(events).interruptions] == ["a signal, as at Slurm's time limit"]
    assert kinds(*events) == {"productive": 10, "saving": 1.5, "other": 0.5, "waiting": 18}


seconds = st.floats(0, 1e4)
EVENTS = st.lists(
    st.one_of(
        st.builds(StartEvent, step=st.integers(0, 50), world_size=st.just(8), parameters=st.just(10**9),
                  process_s=seconds),
        st.builds(TrainEvent, step=st.integers(0, 60), loss=st.just(3.0), step_s=seconds, saving_s=seconds,
                  validating_s=seconds, first_step_s=seconds),
        st.builds(EndEvent, step=st.integers(0, 60), reason=st.just("max_steps"), saving_s=seconds),
        st.builds(CheckpointEvent, step=st.integers(0, 60), paused_s=seconds),
    ),
    max_size=20,
)  # fmt: skip


@given(EVENTS, st.lists(seconds, min_size=20, max_size=20))
@settings(max_examples=200, deadline=None)
def test_kinds_sum_to_the_time_and_only_grow(events, pauses):
    """Whatever happened: no kind is negative, none shrinks with a further event, and none of the time is missing."""
    at, before = 0.0, dict.fromkeys(KINDS, 0.0)
    timed = []
    for event, pause in zip(events, pauses, strict=False):
        timed.append(event.with_values(elapsed_s=at))
        at += pause
        found = account(timed).seconds
        assert all(found[name] >= seconds - 1e-6 for name, seconds in before.items())
        before = found
    last = max((event.elapsed_s for event in timed if event.kind in ("start", "train", "end")), default=0.0)
    assert sum(before.values()) == pytest.approx(last, abs=1e-6)


@pytest.mark.slow
def test_a_real_run_accounts_for_its_time(undisturbed, tmp_path, capsys):
    """Page, Markdown, JSON and terminal have the same figures; their sum is the time of the run."""
    goodput = History.of(RunFolder(undisturbed)).goodput
    times = [event["time"] for event in logged(RunFolder(undisturbed)) if event["event"] in ("start", "train", "end")]
    assert goodput.total_s == pytest.approx(times[-1] - times[0], abs=0.01)
    assert all(goodput.seconds[name] > 0 for name in ("productive", "saving", "validating", "restarting"))
    assert goodput.predicted > 0.99
    assert (
        main(["report", "--run-dir", str(undisturbed), "--output", str(tmp_path), "--json", "--usd-per-hour=36"]) == 0
    )
    (printed,) = json.loads(capsys.readouterr().out)["goodput"].values()
    assert {row["kind"]: row["seconds"] for row in printed["kinds"]} == pytest.approx(goodput.seconds, abs=1e-3)
    assert sum(row["usd"] for row in printed["kinds"]) == pytest.approx(goodput.total_s / 100)
    share = f"{goodput.share:.1%}"
    assert f"goodput: {share}" in (tmp_path / "time.md").read_text()
    assert f"<td>{share}</td>" in (tmp_path / "index.html").read_text()
    assert main(["watch", "--run-dir", str(undisturbed)]) == 0
    assert f"goodput {share}" in capsys.readouterr().out


def test_what_is_lost_is_listed_by_size():
    """Kinds below a thousandth are left out."""
    found = account([start(0, 0), train(1000, 800, saving_s=100), start(1100, 800)])
    assert summary.lost(found) == "saving 9.1%, waiting 9.1%, other 9.1%"
