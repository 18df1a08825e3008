"""All events of a run are in little memory, and come back as they were."""

import math

from podwright_training.events import EndEvent, StartEvent, TrainEvent
from podwright_training.report.event_log import EventLog, TrainEvents
from podwright_training.report.history import _steps_that_count

EVENTS = [
    StartEvent(time=1.5, step=0, world_size=2),
    TrainEvent(time=2.5, step=1, loss=3.25, sequences=2**53 + 1, batch_digest="ab"),
    TrainEvent(step=2, loss=math.nan, source_tokens={"web": 5}),
    StartEvent(time=4.0, step=1, world_size=2),
    TrainEvent(time=5.5, step=2, loss=2.0, grad_norm=0.5, mfu=None),
    EndEvent(time=6.0, step=2, reason="complete"),
]


def test_events_come_back_as_they_were():
    """Numbers are exact, fields without a value are None, and what was passed is what is written again."""
    log = EventLog(EVENTS)
    assert len(log) == len(EVENTS)
    for event, original in zip(log, EVENTS, strict=True):
        assert type(event) is type(original)
        assert repr(event) == repr(original)
        assert list(event.to_dict()) == list(original.to_dict())
    assert repr(log[2]) == repr(EVENTS[2])
    assert [event.step for event in log[3:]] == [1, 2, 2]
    assert log.sparse_events == [EVENTS[0], EVENTS[3], EVENTS[5]]
    assert log.train[0].sequences == 2**53 + 1
    assert log.train.column("grad_norm") == [None, None, 0.5]
    assert log.train.column("lag_s") == [None] * 3


def test_steps_may_be_selected():
    """A part and a selection are views in their own order, and a start's repeated steps replace those before."""
    log = EventLog(EVENTS)
    assert [event.step for event in log.train.select([2, 0])] == [2, 1]
    assert log.train[1:][0].source_tokens == {"web": 5}
    assert log.train[-1].loss == 2.0
    assert len(log.train[:0]) == len(TrainEvents()) == 0
    counted = _steps_that_count(log)
    assert counted.column("step") == [1, 2]
    assert counted.column("loss") == [3.25, 2.0]
