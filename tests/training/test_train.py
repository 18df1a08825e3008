"""Training jobs as a user starts them: processes, gloo, real data."""

import json
import math
import os
import signal
import socket

import pytest

from podwright_training.__main__ import main
from podwright_training.metrics import Metrics
from podwright_training.run import RunFolder

EXACT = ("loss", "grad_norm", "lr", "batch_digest", "sequences")


def history(folder, *names):
    """Each step's values; the last event of a step counts."""
    return {event["step"]: [event[name] for name in names] for event in RunFolder(folder).events("train")}


def wait_for_step(folder, process, step):
    """Read what the job prints until it has done ``step``."""
    for line in process.stdout:
        if line.startswith(f"step {step} "):
            return
    pytest.fail(f"the job in {folder} ended before step {step}")


def children(pid):
    """Process ids of the direct children."""
    return [int(child) for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]  # noqa: SIM115, PTH123


def free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_loss_falls_and_all_is_told(undisturbed):
    """A short run has its events in order, ends at max_steps and has learned something."""
    events = list(RunFolder(undisturbed).events())
    kinds = [event["event"] for event in events]
    assert kinds == ["start", *(["train"] * 4 + ["checkpoint"]) * 2, *["train"] * 4, "validation", "checkpoint", "end"]
    assert events[0]["world_size"] == 2
    assert events[-1]["reason"] == "max_steps"
    losses = [loss for (loss,) in history(undisturbed, "loss").values()]
    assert abs(losses[0] - math.log(300)) < 0.1
    assert losses[-1] < losses[0] - 1


def test_two_ranks_learn_what_one_process_learns(undisturbed, tiny_flags, tmp_path):
    """The same batches in the same order, the same loss to 1e-5: sharding changes nothing."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1)]) == 0
    assert history(tmp_path, "batch_digest", "sequences") == history(undisturbed, "batch_digest", "sequences")
    alone, two = history(tmp_path, "loss", "grad_norm"), history(undisturbed, "loss", "grad_norm")
    assert all(alone[step] == pytest.approx(two[step], abs=1e-5) for step in two)


def test_hybrid_sharding_learns_the_same(undisturbed, tiny_flags, tmp_path, start):
    """Two hosts of two ranks each, replicas between and shards within: the loss of full sharding on two ranks."""
    flags = [*tiny_flags(tmp_path, ranks=4, sharding_strategy="hybrid", max_steps=5)]
    port = free_port()
    hosts = [
        start("train", *flags, ranks=2, torchrun=("--nnodes=2", f"--node_rank={number}", f"--master_port={port}"))
        for number in range(2)
    ]
    outputs = [host.communicate(timeout=120)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    hybrid, full = history(tmp_path, "batch_digest", "loss"), history(undisturbed, "batch_digest", "loss")
    assert [hybrid[step][0] for step in range(1, 6)] == [full[step][0] for step in range(1, 6)]
    assert hybrid[1][1] == pytest.approx(full[1][1], abs=1e-5)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(undisturbed, tiny_flags, tmp_path, start, call):
    """After SIGKILL, losses, gradients and data are bit for bit those of the undisturbed run."""
    process = start("train", *tiny_flags(tmp_path), ranks=2)
    wait_for_step(tmp_path, process, 6)
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')  # as a kill in the middle of a write leaves it
    status, output = call("train", *tiny_flags(tmp_path), ranks=2)
    assert status == 0, output
    resumed = list(RunFolder(tmp_path).events("start"))[-1]
    assert resumed["step"] == 4
    assert resumed["resumed_from"].endswith("step-00000004")
    assert history(tmp_path, *EXACT) == history(undisturbed, *EXACT)


def test_a_signal_saves_and_ends_and_the_next_start_goes_on(undisturbed, tiny_flags, tmp_path, start):
    """SIGUSR1 at any moment: a checkpoint of the step it fell in, exit status 0, and the same run afterwards."""
    process = start("train", *tiny_flags(tmp_path, ranks=1))
    wait_for_step(tmp_path, process, 5)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 0
    end = list(RunFolder(tmp_path).events())[-1]
    assert end["reason"] == "signal"
    assert (tmp_path / "checkpoints" / f"step-{end['step']:08d}" / "manifest.json").exists()
    assert main(["train", *tiny_flags(tmp_path, ranks=1)]) == 0
    assert list(RunFolder(tmp_path).events("start"))[-1]["step"] == end["step"]
    assert history(tmp_path, "batch_digest") == history(undisturbed, "batch_digest")


def test_a_finished_run_started_again_does_nothing(tiny_flags, tmp_path):
    """It resumes at its last step, takes none, and says so."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1)]) == 0
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1)]) == 0
    again = [event["event"] for event in RunFolder(tmp_path).events()][-2:]
    assert again == ["start", "end"]


def test_another_folder_can_be_the_start(undisturbed, tiny_flags, tmp_path):
    """``resume_from_checkpoint`` counts until there is an own checkpoint."""
    flags = tiny_flags(tmp_path, ranks=1, max_steps=13, resume_from_checkpoint=undisturbed / "checkpoints")
    assert main(["train", *flags]) == 0
    assert main(["train", *flags]) == 0
    first, second = RunFolder(tmp_path).events("start")
    assert first["resumed_from"] == str(undisturbed / "checkpoints" / "step-00000012")
    assert second["resumed_from"] == str(tmp_path / "checkpoints" / "step-00000013")


@pytest.mark.parametrize("options", [{"bf16": 1}, {"offload_activations": 1}, {"sharding_strategy": "hybrid"}])
def test_ways_to_save_memory_train_too(tiny_flags, tmp_path, options):
    """Each gives a loss that falls."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=6, **options)]) == 0
    losses = [loss for (loss,) in history(tmp_path, "loss").values()]
    assert losses[-1] < losses[0] - 0.3


def test_a_loss_that_is_no_number_stops_the_run(tiny_flags, tmp_path, capsys):
    """It is told at its step, and nothing of it is saved."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, lr=1e30, min_lr=1e30, warmup=0, checkpoint_freq=1)]) == 2
    assert "this step is not saved" in capsys.readouterr().err
    saved = [event["step"] for event in RunFolder(tmp_path).events("checkpoint")]
    assert all(math.isfinite(loss) for (loss,) in history(tmp_path, "loss").values())
    assert saved == list(history(tmp_path, "loss"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokenizer": "/nowhere"}, "tokenizer '/nowhere'"),
        ({"dataset": "/nowhere"}, "dataset '/nowhere'"),
        ({"vocab_size": 100}, "vocab_size 100 is smaller than the 300 of tokenizer"),
        ({"device": "cuda"}, "device = cuda: this machine has no CUDA device"),
        ({"run_dir": "/dev/null/run"}, "run_dir /dev/null/run cannot be written: Not a directory"),
        ({"resume_from_checkpoint": "/nowhere"}, "resume_from_checkpoint /nowhere holds no complete checkpoint"),
    ],
)
def test_what_the_user_can_put_right_is_one_line(tiny_flags, tmp_path, capsys, options, told):
    """Exit status 2, the problem on one line, no traceback, no process group."""
    assert main(["train", *tiny_flags(options.get("run_dir", tmp_path), ranks=1, **options)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"error: {told}") for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_ranks_that_do_not_divide_the_streams_are_refused(tiny_flags, tmp_path, monkeypatch, capsys):
    """Three ranks cannot share four streams; other problems are told with it."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", *tiny_flags(tmp_path, ranks=1, vocab_size=100)]) == 2
    told = capsys.readouterr().err
    assert "data_streams 4 is not divisible by the 3 ranks" in told
    assert "vocab_size 100" in told


def test_a_checkpoint_of_another_model_is_refused(undisturbed, tiny_flags, tmp_path, capsys):
    """What differs is named before anything is loaded."""
    flags = tiny_flags(tmp_path, ranks=1, num_layers=3, resume_from_checkpoint=undisturbed / "checkpoints")
    assert main(["train", *flags]) == 2
    assert "is of another model: num_hidden_layers 2 there, 3 here" in capsys.readouterr().err


def test_a_train_line_reads_as_it_should(tmp_path, capsys):
    """The console line of the reference's spirit, and the same event as one line of JSON."""
    values = {"step": 34, "loss": 7.9661, "samples_per_s": 5.8, "tokens_per_s": 47_500, "mfu": 0.41, "lr": 1e-4}
    Metrics(tmp_path / "metrics.jsonl", active=True).write("train", **values)
    assert capsys.readouterr().out == "step 34 | loss 7.966 | 5.80 samples/s | 47.5k tok/s | MFU 41% | lr 1.0e-04\n"
    (event,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {name: event[name] for name in values} == values
