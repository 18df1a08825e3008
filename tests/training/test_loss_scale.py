"""Training in fp16: the loss is scaled so that gradients neither vanish nor overflow; metrics are unscaled."""

import gzip
import json
import math
import shutil
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.config.train_config import TrainConfig
from podwright_training.loop import loss_scale
from podwright_training.loop.loss_scale import LossScale
from podwright_training.run_folder import RunFolder

FP16 = TrainConfig(precision="fp16")
norms = st.lists(st.sampled_from([1.0, math.inf, math.nan]), max_size=60)


@pytest.fixture
def impatient(monkeypatch):
    """A scale that begins far too high and grows after three good steps."""
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**34)
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL_STEPS", 3)


def history(folder):
    """Return each step's metrics but times; the last event of a step counts."""
    names = ("event", "loss", "grad_norm", "loss_scale", "batch_digest", "lr")
    events = [event for event in logged(RunFolder(folder)) if event["event"] in {"train", "overflow"}]
    return {event["step"]: [event.get(name) for name in names] for event in events}


@given(norms)
def test_overflows_halve_and_good_steps_double(seen):
    """Whatever comes, the scale is a power of two of at least 1, and only scales above it are to blame."""
    scale, good = LossScale(FP16), 0
    for norm in seen:
        before = scale.value
        overflowed = scale.overflowed(loss=3.0, grad_norm=norm)
        assert overflowed == (before > 1 and not math.isfinite(norm))
        good = good + 1 if math.isfinite(norm) else 0
        assert scale.value == (before if math.isfinite(norm) else max(1.0, before / 2))
        assert math.log2(scale.value) % 1 == 0
    for _ in range(loss_scale.GROWTH_INTERVAL_STEPS - good):
        before = scale.value
        assert not scale.overflowed(loss=3.0, grad_norm=1.0)
    assert scale.value == 2 * before


@given(norms, norms)
def test_a_scale_with_the_state_of_another_decides_alike(before, after):
    """A resumed run needs only the checkpoint's state."""
    unbroken, resumed = LossScale(FP16), LossScale(FP16)
    for norm in before:
        unbroken.overflowed(loss=3.0, grad_norm=norm)
    resumed.load_state(unbroken.state())
    for norm in after:
        assert unbroken.overflowed(loss=3.0, grad_norm=norm) == resumed.overflowed(loss=3.0, grad_norm=norm)
    assert unbroken.state() == resumed.state()


def test_only_overflows_of_fp16_are_its_business():
    """NaN losses, and all steps in other precisions, are left to the guard."""
    scale, none = LossScale(FP16), LossScale(TrainConfig())
    assert not scale.overflowed(loss=math.nan, grad_norm=math.nan)
    assert scale.state() == {"value": 2.0**16, "good_steps": 0}
    assert not none.overflowed(loss=3.0, grad_norm=math.inf)
    assert (none.value, none.state()) == (1.0, {})
    scale.load_state(none.state())
    assert scale.value == 2.0**16


@pytest.fixture
def odd(text_dataset, tmp_path):
    """The dataset, every fiftieth of its training documents one letter again and again."""
    folder = tmp_path / "odd"
    shutil.copytree(text_dataset, folder)
    document = json.dumps({"text": "Q" * 120, "timestamp": "", "url": ""})
    for shard in (folder / "en").glob("c4-train.*"):
        lines = gzip.decompress(shard.read_bytes()).decode().splitlines()
        lines = [document if number % 50 == 7 else line for number, line in enumerate(lines)]
        shard.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return folder


def test_fp16_on_two_ranks_learns_what_fp32_learns(tiny_flags, odd, tmp_path, call_ranks):
    """The same batches and, until a step whose gradient is far larger is left out, the same losses."""
    options = {"dataset": odd, "seed": 1}  # whose order has odd documents from step 9 on
    status, output = call_ranks(2, "train", *tiny_flags(tmp_path / "fp16", precision="fp16", **options))
    assert status == 0, output
    assert main(["train", *tiny_flags(tmp_path / "fp32", ranks=1, **options)]) == 0
    here, there = history(tmp_path / "fp16"), history(tmp_path / "fp32")
    skipped = [step for step, (event, *_) in here.items() if event == "overflow"]
    assert skipped == [10]
    assert max(there, key=lambda step: there[step][2]) == 10
    for step in range(1, 11):
        assert here[step][1] == pytest.approx(there[step][1], abs=2e-3)
    assert [steps[4] for steps in here.values()] == [steps[4] for steps in there.values()]
    assert here[12][1] < here[1][1] - 1
    assert [steps[3] for steps in here.values()] == [2.0**16] * 9 + [2.0**15] * 3


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_overflowing_steps_are_left_out_and_a_resume_is_exact(tiny_flags, tmp_path):
    """They are reported, halve the scale until the gradient fits, and change no weight; then the loss falls."""
    flags = tiny_flags(tmp_path / "run", ranks=1, precision="fp16", max_steps=40, gradient_accumulation_steps=2)
    flags += ["--noise-scale-freq=1", "--keep-checkpoints=20", "--train-batch-size=4"]
    assert main(["train", *flags]) == 0
    steps = history(tmp_path / "run")
    skipped = [step for step, (event, *_) in steps.items() if event == "overflow"]
    assert skipped[:4] == [1, 2, 3, 4]
    assert [steps[step][3] for step in skipped[:4]] == [2.0**33, 2.0**32, 2.0**31, 2.0**30]
    first = next(step for step in steps if step not in skipped)
    assert steps[first][1] == pytest.approx(math.log(300), abs=0.1)
    scales = [scale for event, _, _, scale, *_ in steps.values() if event == "train"]
    assert any(after == 2 * before for before, after in pairwise(scales))
    assert steps[40][1] < steps[first][1] - 1
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for path in (tmp_path / "again" / "checkpoints").iterdir():
        if path.name > "step-00000016":
            shutil.rmtree(path)
    assert main(["train", f"--config={tmp_path / 'run' / 'config.yaml'}", f"--run-dir={tmp_path / 'again'}"]) == 0
    assert list(logged(RunFolder(tmp_path / "again"), "start"))[-1]["step"] == 16
    assert history(tmp_path / "again") == steps


@pytest.mark.slow
def test_a_gradient_that_overflows_at_scale_one_is_the_guards(tiny_flags, tmp_path, monkeypatch, capsys):
    """Then no scale helps, and the run stops with the guard's word."""
    monkeypatch.setattr(loss_scale, "INITIAL", 4.0)
    broken = {"lr": 1e30, "min_lr": 1e30, "warmup": 0}
    assert main(["train", *tiny_flags(tmp_path, ranks=1, precision="fp16", **broken)]) == 2
    assert "this step is not saved" in capsys.readouterr().err
