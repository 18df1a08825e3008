"""Training jobs as a user starts them: processes, gloo, real data."""

import gzip
import json
import math
import random
import shutil
import signal
from itertools import accumulate
from pathlib import Path

import pytest
import torch
import yaml

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.events import TrainEvent, written_fields
from podwright_training.loop import samples
from podwright_training.loop.metrics import Metrics
from podwright_training.loop.stop_requests import StopRequests
from podwright_training.run_folder import RunFolder

EXACT = ("loss", "grad_norm", "lr", "batch_digest", "sequences")
RARE_FIELDS = {  # of a logged step, each written only under a condition
    *("tokens", "log_byte"),  # another trainer's job
    *("source_tokens", "source_epochs"),  # a mixture
    *("memory_peak_bytes", "memory_reserved_bytes", "mfu"),  # an accelerator
    *("saving_s", "validating_s", "first_step_s"),  # something happened
    *("memory_step", "noise_scale_tokens"),  # an option
}


def history(folder, *names):
    """Each step's values; the last event of a step counts."""
    return {event["step"]: [event[name] for name in names] for event in logged(RunFolder(folder), "train")}


def same_learning(folder, other):
    """Return whether losses are equal to 1e-5, and norms to 1e-4 of themselves: large norms round more."""
    here, there = history(folder, "loss", "grad_norm"), history(other, "loss", "grad_norm")
    return here.keys() == there.keys() and all(
        loss == pytest.approx(there[step][0], abs=1e-5) and norm == pytest.approx(there[step][1], rel=1e-4)
        for step, (loss, norm) in here.items()
    )


def wait_for_step(folder, process, step):
    """Read what the job prints until it has done ``step``."""
    for line in process.stdout:
        if line.startswith(f"step {step} "):
            return
    pytest.fail(f"the job in {folder} ended before step {step}")


def test_the_loss_falls_and_every_event_is_written(undisturbed):
    """A short run has its events in order, ends at max_steps and has learned something."""
    events = [event for event in logged(RunFolder(undisturbed)) if event["event"] != "straggler"]  # the machine's own
    kinds = [event["event"] for event in events if event["event"] != "checkpoint"]
    assert kinds == ["start", "files", "files", "data", *["train"] * 12, "validation", "end"]
    data = events[kinds.index("data")]
    assert (data["source"], data["streams"]) == ("dataset", 4)
    assert data["epoch_steps"] == math.ceil(data["epoch_sequences"] / 8)
    assert [event["step"] for event in events if event["event"] == "checkpoint"] == [4, 8, 12]
    assert events[0]["world_size"] == 2
    assert events[-1]["reason"] == "max_steps"
    written_names = {name for event in events if event["event"] == "train" for name in event}
    assert {each.name for each in written_fields(TrainEvent)} - written_names <= RARE_FIELDS
    losses = [loss for (loss,) in history(undisturbed, "loss").values()]
    assert abs(losses[0] - math.log(300)) < 0.1
    assert losses[-1] < losses[0] - 1
    epochs = [epoch for (epoch,) in history(undisturbed, "epoch").values()]
    assert epochs == sorted(epochs)
    assert epochs[-1] == pytest.approx(12 / data["epoch_steps"], rel=0.5)  # windows of few documents are uneven


@pytest.mark.slow
def test_data_that_was_read_often_enough_ends_the_run(tiny_flags, text_dataset, tmp_path):
    """The run validates, saves and ends with the step that reads the last document; metrics say how often it read."""
    mixture = tmp_path / "mixture.yaml"
    sources = {name: {"dataset": str(text_dataset), "weight": weight} for name, weight in (("a", 3), ("b", 1))}
    mixture.write_text(yaml.safe_dump({**sources, "a": {**sources["a"], "max_epochs": 2}}))
    run, longer = tmp_path / "run", {"max_steps": 1000, "data_mixture": mixture, "max_context_width": 128}
    longer["validation_datasets"] = f"held={text_dataset},again={text_dataset}"
    assert main(["train", *tiny_flags(run, ranks=1, **longer)]) == 0
    kinds = ("start", "train", "validation", "end")
    *_, last, validation, end = [event for event in logged(RunFolder(run)) if event["event"] in kinds]
    assert (validation["event"], validation["step"]) == ("validation", last["step"])
    assert validation["losses"]["held"] == validation["losses"]["again"] != validation["loss"]
    assert abs(validation["losses"]["held"] - validation["loss"]) < 0.2  # the same documents in another order
    assert (end["reason"], end["step"]) == ("max_epochs", last["step"])
    assert last["epoch"] == last["source_epochs"]["a"] == 2
    assert 0.3 <= last["source_epochs"]["b"] < 1
    (size, _) = logged(RunFolder(run), "data")
    assert 0.7 < last["step"] / (2 * size["epoch_steps"]) < 1.6  # streams of few documents differ in length
    assert sum(last["source_tokens"].values()) == 128 * last["sequences"]
    assert main(["train", *tiny_flags(run, ranks=1, **longer)]) == 0  # a second start takes no step more
    assert list(logged(RunFolder(run), "train"))[-1]["step"] == end["step"]


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_learns(undisturbed, tiny_flags, tmp_path):
    """The same batches in the same order, the same loss to 1e-5: sharding changes nothing."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1)]) == 0
    assert history(tmp_path, "batch_digest", "sequences") == history(undisturbed, "batch_digest", "sequences")
    assert same_learning(tmp_path, undisturbed)


@pytest.mark.slow
def test_the_number_of_ranks_changes_nothing_with_a_global_batch(tiny_flags, tmp_path, call_ranks):
    """On 4, 3, 2 ranks and in a pipeline, none of which divides the batch: one process's batches, losses to 1e-5."""
    settings = {"global_batch_size": 6, "data_streams": 12, "batch_ramp": 0.3, "checkpoint_freq": 3, "keep_every": 3}
    alone = tmp_path / "alone"
    assert main(["train", *tiny_flags(alone, ranks=1, train_batch_size=1, **settings)]) == 0
    names, compared = ("batch_digest", "sequences"), ("loss", "grad_norm")
    batches, expected = history(alone, *names), history(alone, *compared)
    pipeline = {"pipeline_parallel": 2, "train_batch_size": 4, "pipeline_micro_batches": 2}
    saved = None
    for begin, ranks, options in ((0, 4, {}), (3, 3, {}), (6, 2, {"tensor_parallel": 2}), (9, 2, pipeline)):
        folder = tmp_path / f"from-{begin}"
        if saved:
            shutil.copytree(saved, folder / "checkpoints" / saved.name)
        flags = tiny_flags(folder, **{"train_batch_size": 1, "val_batch_size": 2} | settings | options)
        status, output = call_ranks(ranks, "train", *flags)
        assert status == 0, output
        assert history(folder, *names) == {step: batches[step] for step in range(begin + 1, 13)}
        for step, (loss, norm) in history(folder, *compared).items():
            assert loss == pytest.approx(expected[step][0], abs=1e-5)
            assert norm == pytest.approx(expected[step][1], rel=1e-4)
        saved = folder / "checkpoints" / f"step-{begin + 3:08d}"


@pytest.mark.slow
def test_a_growing_batch_of_a_mixture_is_balanced_as_on_one_rank(tiny_flags, tmp_path, call_ranks):
    """Two ranks whose micro-batches together are one process's learn the same to 1e-5, from the first step on."""
    experts = {"model_type": "mixtral", "num_local_experts": 4, "router_aux_loss_coef": 0.5}
    settings = {"global_batch_size": 12, "batch_ramp": 0.5, "max_steps": 6, **experts}
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert main(["train", *tiny_flags(alone, ranks=1, train_batch_size=4, **settings)]) == 0
    status, output = call_ranks(2, "train", *tiny_flags(together, train_batch_size=2, **settings))
    assert status == 0, output
    assert [size for (size,) in history(alone, "batch_sequences").values()] == [4, 8, 12, 12, 12, 12]
    assert history(alone, "batch_digest", "sequences") == history(together, "batch_digest", "sequences")
    assert same_learning(alone, together)


def test_a_global_batch_that_the_ranks_cannot_share_is_refused(tiny_flags, tmp_path, call_ranks):
    """Fewer sequences than ranks, sequences that experts' routers would invent, and two sizes for one batch."""
    status, output = call_ranks(2, "train", *tiny_flags(tmp_path / "few", global_batch_size=1))
    assert (status, "global_batch_size 1 leaves some of the 2 ranks" in output) == (2, True), output
    experts = {"model_type": "mixtral", "num_local_experts": 4, "train_batch_size": 4}
    status, output = call_ranks(2, "train", *tiny_flags(tmp_path / "experts", global_batch_size=12, **experts))
    assert (status, "global_batch_size 12 is not divisible by 8" in output) == (2, True), output
    both = tiny_flags(tmp_path / "both", global_batch_size=8, gradient_accumulation_steps=2)
    status, output = call_ranks(1, "train", *both)
    assert (status, "leave out gradient_accumulation_steps 2" in output) == (2, True), output


def test_hybrid_sharding_learns_the_same(undisturbed, tiny_flags, tmp_path, call_ranks):
    """Two hosts of two ranks each, replicas between and shards within: the loss of full sharding on two ranks."""
    flags = tiny_flags(tmp_path, ranks=4, sharding_strategy="hybrid")
    status, output = call_ranks(4, "train", *flags, ranks_per_host=2)
    assert status == 0, output
    assert history(tmp_path, "batch_digest") == history(undisturbed, "batch_digest")
    assert same_learning(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(undisturbed, tiny_flags, tmp_path, call, call_ranks):
    """After SIGKILL, losses, gradients and data are bit for bit those of the undisturbed run; torchrun starts it."""
    status, _ = call_ranks(2, "train", *tiny_flags(tmp_path), kill_after=["checkpoint", 4])
    assert status == -signal.SIGKILL
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')  # as a kill in the middle of a write leaves it
    status, output = call("train", *tiny_flags(tmp_path), ranks=2)
    assert status == 0, output
    resumed = list(logged(RunFolder(tmp_path), "start"))[-1]
    assert resumed["step"] in {4, 8}
    assert resumed["resumed_from"].endswith(f"step-{resumed['step']:08d}")
    assert history(tmp_path, *EXACT) == history(undisturbed, *EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_ends_and_the_next_start_goes_on(undisturbed, tiny_flags, tmp_path, start, number):
    """SIGUSR1 or Ctrl-C at any moment: a checkpoint of the step it fell in, status 0, and the same run afterwards."""
    process = start("train", *tiny_flags(tmp_path, ranks=1, max_steps=2000))  # it cannot end before the signal comes
    wait_for_step(tmp_path, process, 5)
    process.send_signal(number)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    assert "Traceback" not in output
    end = list(logged(RunFolder(tmp_path)))[-1]
    assert end["reason"] == "signal"
    assert (tmp_path / "checkpoints" / f"step-{end['step']:08d}" / "manifest.json").exists()
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=max(12, end["step"] + 1))]) == 0
    assert list(logged(RunFolder(tmp_path), "start"))[-1]["step"] == end["step"]
    digests = history(tmp_path, "batch_digest")
    assert list(digests) == list(range(1, max(12, end["step"] + 1) + 1))
    expected = history(undisturbed, "batch_digest")
    assert {step: digests[step] for step in expected} == expected


@pytest.mark.slow
def test_ctrl_c_under_torchrun_saves(tiny_flags, tmp_path, start):
    """The ranks, to which torchrun passes SIGINT on, save before they end."""
    process = start("train", *tiny_flags(tmp_path, max_steps=2000, checkpoint_freq=1000), ranks=2)
    wait_for_step(tmp_path, process, 5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=500)
    end = list(logged(RunFolder(tmp_path)))[-1]
    assert end["reason"] == "signal"
    assert (tmp_path / "checkpoints" / f"step-{end['step']:08d}" / "manifest.json").exists()


def test_ctrl_c_is_left_to_the_foreground():
    """A job in the background goes on ignoring SIGINT, and only the first Ctrl-C waits for a checkpoint."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequests(announces=False) as requests:
            signal.raise_signal(signal.SIGINT)
        assert requests.signals == []
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with StopRequests(announces=False) as requests:
            signal.raise_signal(signal.SIGINT)
            assert requests.signals == [signal.SIGINT]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_damaged_config_is_named(tiny_flags, tmp_path, capsys):
    """A next start says which file it cannot read, and what to do."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1)]) == 0
    file = tmp_path / "config.yaml"
    for text, reason in (("lr: [1", f"{file}:1:5: not YAML: "), ("just words", f"cannot read {file}: ")):
        file.write_text(text)
        assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=2)]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert f"error: {reason}" in errors[-1]
        assert errors[-1].endswith("; remove it, this start writes it again")


@pytest.mark.slow
def test_a_finished_run_started_again_does_nothing(tiny_flags, tmp_path):
    """It resumes at its last step, takes none, and says so."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1)]) == 0
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=1)]) == 0
    again = [event["event"] for event in logged(RunFolder(tmp_path))][-5:]
    assert again == ["start", "files", "files", "data", "end"]


def test_fewer_steps_than_were_taken_end_at_once(undisturbed, tiny_flags, tmp_path):
    """Resumed with ``max_steps`` below its step, a run ends by ``max_steps``: nobody sent a signal."""
    flags = tiny_flags(tmp_path, ranks=1, max_steps=6, resume_from_checkpoint=undisturbed / "checkpoints")
    assert main(["train", *flags]) == 0
    end = list(logged(RunFolder(tmp_path)))[-1]
    assert (end["event"], end["step"], end["reason"]) == ("end", 12, "max_steps")


@pytest.mark.slow
def test_another_folder_can_be_the_start(undisturbed, tiny_flags, tmp_path):
    """``resume_from_checkpoint`` counts until there is an own checkpoint."""
    flags = tiny_flags(tmp_path, ranks=1, max_steps=13, resume_from_checkpoint=undisturbed / "checkpoints")
    assert main(["train", *flags]) == 0
    assert main(["train", *flags]) == 0
    first, second = logged(RunFolder(tmp_path), "start")
    assert first["resumed_from"] == str(undisturbed / "checkpoints" / "step-00000012")
    assert second["resumed_from"] == str(tmp_path / "checkpoints" / "step-00000013")


@pytest.mark.parametrize("options", [{"bf16": 1}, {"offload_activations": 1}, {"sharding_strategy": "hybrid"}])
def test_ways_to_save_memory_train_too(tiny_flags, tmp_path, options):
    """Each gives a loss that falls."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, max_steps=6, **options)]) == 0
    losses = [loss for (loss,) in history(tmp_path, "loss").values()]
    assert losses[-1] < losses[0] - 0.3


def test_a_loss_that_is_no_number_stops_the_run(tiny_flags, tmp_path, capsys):
    """It is reported at its step, and nothing of it is saved."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, lr=1e30, min_lr=1e30, warmup=0, checkpoint_freq=100)]) == 2
    assert "this step is not saved" in capsys.readouterr().err
    assert all(math.isfinite(loss) for (loss,) in history(tmp_path, "loss").values())
    assert not list(RunFolder(tmp_path).checkpoints.glob("step-*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "/nowhere"}, "tokenizer '/nowhere'"),
        ({"dataset": "/nowhere"}, "dataset '/nowhere'"),
        ({"vocab_size": 100}, "vocab_size 100 is smaller than the 300 ids of tokenizer"),
        ({"device": "cuda"}, "device = cuda: this machine has no CUDA device"),
        ({"run_dir": "/dev/null/run"}, "run_dir /dev/null/run is not writable: Not a directory"),
        ({"resume_from_checkpoint": "/nowhere"}, "resume_from_checkpoint /nowhere has no complete checkpoint"),
        ({"sample_prompts": "/nowhere"}, "sample_prompts /nowhere: No such file or directory"),
        ({"sample_prompts": __file__, "sample_tokens": 30}, f"sample_prompts {__file__}: a text has "),
        ({"validation_datasets": "web"}, "validation_datasets web: web: no dataset"),
    ],
)
def test_what_the_user_can_fix_is_one_line(tiny_flags, tmp_path, capsys, options, message):
    """Exit status 2, the problem on one line, no traceback, no process group."""
    options = {"run_dir": tmp_path, **options}
    assert main(["train", *tiny_flags(ranks=1, **options)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"error: {message}") for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_a_prompt_is_a_line_of_its_file(text_dataset, tmp_path):
    """A separator of Unicode belongs to a text, as in JSON lines; a byte order mark and Windows' line ends do not."""
    text = "the node\u2028writes\x85a file"
    (tmp_path / "prompts").write_bytes(f"\ufeff{text}\r\na\r\n".encode())
    tokenizer = load_tokenizer(str(text_dataset / "tokenizer"))
    tokens = len(tokenizer.encode(text, add_special_tokens=False))
    config = TrainConfig(sample_prompts=str(tmp_path / "prompts"), sample_tokens=8, max_context_width=tokens + 7)
    (problem,) = samples.problems(config, tokenizer)
    assert f"a text has {tokens} tokens, need at most {tokens - 1}: " in problem


def test_a_dataset_without_a_document_is_refused(text_dataset, tiny_flags, tmp_path, capsys):
    """Shards that hold nothing are found before any rank waits for another, in either split."""
    for split in ("train", "validation"):
        folder = tmp_path / split
        shutil.copytree(text_dataset / "en", folder / "en")
        for shard in (folder / "en").glob(f"c4-{split}.*"):
            shard.write_bytes(gzip.compress(b""))
        assert main(["train", *tiny_flags(tmp_path / "run", ranks=1, dataset=folder)]) == 2
        message = capsys.readouterr().err
        assert "has no document" in message
        assert f"c4-{split}." in message


def test_what_goes_elsewhere_needs_its_package(tiny_flags, tmp_path, capsys):
    """A missing optional package is reported with all other problems."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, wandb=1, vocab_size=100)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("error: wandb = 1: package wandb is not installed") for line in lines)
    assert any("vocab_size 100" in line for line in lines)


def test_accumulated_batches_learn_what_one_learns(undisturbed, tiny_flags, tmp_path):
    """Four micro-batches per step: the sequences and, to 1e-5, the losses of one batch of their size."""
    flags = tiny_flags(
        tmp_path,
        ranks=1,
        train_batch_size=2,
        gradient_accumulation_steps=4,
        noise_scale_freq=2,
        logging_freq=2,
        profile_steps="2-2",
        deterministic=1,
    )
    assert main(["train", *flags]) == 0
    torch.use_deterministic_algorithms(mode=False)
    names = ("batch_digest", "sequences", "batch_sequences")
    one = {step: values for step, values in history(undisturbed, *names).items() if step % 2 == 0}
    assert history(tmp_path, *names) == one
    losses, expected = history(tmp_path, "loss", "grad_norm"), history(undisturbed, "loss", "grad_norm")
    assert all(losses[step] == pytest.approx(expected[step], abs=1e-5) for step in one)
    assert any(scale and scale > 0 for (scale,) in history(tmp_path, "noise_scale_tokens").values())
    assert (tmp_path / "traces" / "rank-0.json").exists()


@pytest.mark.slow
def test_a_growing_batch_takes_the_data_in_the_same_order(tiny_flags, tmp_path):
    """The ramp takes few sequences first and the full number at last, none left out; each run of it is the same."""
    options = {"train_batch_size": 2, "gradient_accumulation_steps": 4, "batch_ramp": 0.5, "max_steps": 8}
    for name in ("first", "second"):
        assert main(["train", *tiny_flags(tmp_path / name, ranks=1, **options)]) == 0
    sizes = [size for (size,) in history(tmp_path / "first", "batch_sequences").values()]
    assert sizes == [2, 4, 6, 8, 8, 8, 8, 8]
    drawn = [sequences for (sequences,) in history(tmp_path / "first", "sequences").values()]
    assert drawn == list(accumulate(sizes))
    assert history(tmp_path / "first", *EXACT) == history(tmp_path / "second", *EXACT)


@pytest.mark.slow
def test_everything_optional_resumes_bit_for_bit(tiny_flags, tmp_path):
    """Muon, an average of the weights, a ramp, accumulation and a guard: resumed from half way, as if unbroken."""
    options = {
        "train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "batch_ramp": 0.8,
        "optimizer": "muon",
        "lr_schedule": "wsd",
        "ema_decay": 0.9,
        "adaptive_grad_clip": 0.1,
        "guard_policy": "skip",
        "guard_z_score": 3,
        "guard_window": 8,
    }
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["train", *tiny_flags(first, ranks=1, **options)]) == 0
    shutil.copytree(first / "checkpoints" / "step-00000008", second / "checkpoints" / "step-00000008")
    assert main(["train", *tiny_flags(second, ranks=1, **options)]) == 0
    unbroken, resumed = history(first, *EXACT), history(second, *EXACT)
    assert list(resumed) == [9, 10, 11, 12]
    assert resumed == {step: unbroken[step] for step in resumed}
    validated = [[event["loss"] for event in logged(RunFolder(folder), "validation")] for folder in (first, second)]
    assert validated[0] == validated[1]


def test_a_train_event_has_every_measurement(undisturbed):
    """Speed per rank, perplexity, memory and who is late are in every event; the FLOPs' convention is in the first."""
    for event in logged(RunFolder(undisturbed), "train"):
        assert event["tokens_per_s_per_rank"] == pytest.approx(event["tokens_per_s"] / 2)
        assert event["perplexity"] == pytest.approx(math.exp(event["loss"]))
        assert 0 <= event["data_s"] < event["step_s"]
        assert event["memory_peak_bytes"] > 50 * 2**20
        assert event["slowest_rank"] in (0, 1)
    (begin,) = logged(RunFolder(undisturbed), "start")
    assert "PaLM" in begin["flops_convention"]
    assert begin["flops_per_token"] > 6 * begin["parameters"] / 2


@pytest.fixture
def spiked(text_dataset, tmp_path):
    """The dataset, every fiftieth of its training documents made of letters that no other has."""
    folder = tmp_path / "spiked"
    shutil.copytree(text_dataset, folder)
    draw = random.Random(1)  # noqa: S311 - not for secrets
    for shard in (folder / "en").glob("c4-train.*"):
        lines = gzip.decompress(shard.read_bytes()).decode().splitlines()
        odd = json.dumps({"text": "".join(draw.choices("QXZJKVW", k=90)), "timestamp": "", "url": ""})
        lines = [odd if number % 50 == 7 else line for number, line in enumerate(lines)]
        shard.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return folder


def guarded(tiny_flags, folder, dataset, **options):
    """Flags of a run that meets its first spike after some steps."""
    watching = {"guard_window": 8, "guard_z_score": 6.0, "max_steps": 40, "checkpoint_freq": 5, "lr": 0.02}
    watching["keep_checkpoints"] = 8  # so that each spike has one before it
    watching["seed"] = 5  # whose order has the first spike at step 39
    return tiny_flags(folder, ranks=1, train_batch_size=2, dataset=dataset, **(watching | options))


@pytest.mark.slow
def test_a_spike_is_skipped_and_its_batch_can_be_read_again(tiny_flags, spiked, tmp_path, capsys):
    """Skipped steps are logged with their data position, training continues, and ``replay`` shows the odd documents."""
    assert main(["train", *guarded(tiny_flags, tmp_path / "run", spiked, guard_policy="skip")]) == 0
    events = list(logged(RunFolder(tmp_path / "run"), "guard"))
    assert events
    assert all(event["policy"] == "skip" and "is a spike" in event["reason"] for event in events)
    steps = history(tmp_path / "run", "loss")
    assert not {event["step"] for event in events} & set(steps)
    assert {event["step"] for event in events} | set(steps) == set(range(1, 41))
    capsys.readouterr()
    assert main(["replay", f"--run-dir={tmp_path / 'run'}", f"--step={events[-1]['step']}", "--losses"]) == 0
    message = capsys.readouterr().out
    assert events[-1]["batch_digest"] in message
    assert any(set(line.split("'")[1]) <= set("QXZJKVW") for line in message.splitlines() if "'" in line)
    losses = [float(line.split("loss ")[1]) for line in message.splitlines() if line.startswith("sequence")]
    assert len(losses) == 2
    assert max(losses) > float(events[-1]["loss"]) - 0.5


@pytest.mark.slow
def test_a_rollback_goes_back_and_on_with_other_data(tiny_flags, spiked, tmp_path):
    """Weights and step are the checkpoint's, the data continues after the bad batch, and the run ends as any.

    The step that was loaded is not saved again.
    """
    assert main(["train", *guarded(tiny_flags, tmp_path / "run", spiked, guard_policy="rollback")]) == 0
    events = list(logged(RunFolder(tmp_path / "run")))
    place = next(place for place, event in enumerate(events) if event["event"] == "guard")
    bad, following = events[place], next(event for event in events[place:] if event["event"] == "train")
    assert following["step"] == int(bad["checkpoint"][-8:]) + 1
    assert following["sequences"] == bad["sequences"] + following["batch_sequences"]
    assert [events[-1][name] for name in ("event", "step", "reason")] == ["end", 40, "max_steps"]
    assert [event["step"] for event in events if event["event"] == "checkpoint"] == list(range(5, 41, 5))


def test_a_spike_stops_the_run_unless_it_may_go_on(tiny_flags, spiked, tmp_path, capsys):
    """The default policy: one line with the step and how to see its batch; nothing of it is saved."""
    assert main(["train", *guarded(tiny_flags, tmp_path / "run", spiked)]) == 2
    (event,) = logged(RunFolder(tmp_path / "run"), "guard")
    assert f"error: step {event['step']}: loss" in capsys.readouterr().err
    assert max(history(tmp_path / "run", "loss")) == event["step"] - 1
    saved = [saved["step"] for saved in logged(RunFolder(tmp_path / "run"), "checkpoint")]
    assert max(saved) < event["step"]


@pytest.mark.slow
def test_there_is_nothing_to_roll_back_to(tiny_flags, tmp_path, capsys):
    """After a first step that is no number, neither a rollback nor skipping all that follow helps."""
    broken = {"lr": 1e30, "min_lr": 1e30, "warmup": 0, "max_steps": 30, "checkpoint_freq": 30}
    assert main(["train", *tiny_flags(tmp_path / "a", ranks=1, guard_policy="rollback", **broken)]) == 65
    assert "there is no checkpoint to roll back to" in capsys.readouterr().err
    assert main(["train", *tiny_flags(tmp_path / "b", ranks=1, guard_policy="skip", **broken)]) == 2
    assert "10 steps before it were skipped too" in capsys.readouterr().err


def test_a_replay_follows_the_weights_that_the_run_has_logged(tiny_flags, text_dataset, tmp_path, capsys):
    """A run that logged none may have had other weights: neither dataset nor tokenizer is to blame alone."""
    for steps, weights in ((1, (7, 3)), (2, (2, 8))):
        mixture = ",".join(f"{name}={text_dataset}={weight}" for name, weight in zip("ab", weights, strict=True))
        flags = tiny_flags(tmp_path, ranks=1, max_steps=steps, checkpoint_freq=steps, data_mixture=mixture)
        assert main(["train", *flags]) == 0
    capsys.readouterr()
    assert main(["replay", f"--run-dir={tmp_path}", "--step=1"]) == 0
    metrics = tmp_path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if json.loads(line)["event"] != "mixture"))
    assert main(["replay", f"--run-dir={tmp_path}", "--step=1"]) == 2
    assert f"data_mixture {mixture} (a weight or a dataset) or tokenizer" in capsys.readouterr().err


def test_a_batch_that_cannot_be_read_again_is_reported(undisturbed, tiny_flags, tmp_path, capsys):
    """A step without an event has its nearest named; data that has changed since is no batch of the run."""
    assert main(["replay", f"--run-dir={undisturbed}", "--step=99"]) == 2
    assert "has no step 99; the nearest are 10, 11, 12" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["replay", f"--run-dir={undisturbed}", "--step=9", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["step"], again["weights_step"], again["sequences"][0]["loss"]) == (9, None, None)
    assert all(document["tokens"] > 0 for sequence in again["sequences"] for document in sequence["documents"])
    shutil.copytree(undisturbed, tmp_path / "run")
    text = (tmp_path / "run" / "config.yaml").read_text().replace("dataset_config_name: en", "dataset_config_name: fr")
    (tmp_path / "run" / "config.yaml").write_text(text)
    dataset = Path(next(flag for flag in tiny_flags("") if flag.startswith("--dataset=")).removeprefix("--dataset="))
    shutil.copytree(dataset, tmp_path / "other")
    (tmp_path / "other" / "en").rename(tmp_path / "other" / "fr")
    shards = sorted((tmp_path / "other" / "fr").glob("c4-train.*"))
    shards[0].write_bytes(shards[1].read_bytes())
    text = text.replace(f"dataset: {dataset}\n", f"dataset: {tmp_path / 'other'}\n")
    (tmp_path / "run" / "config.yaml").write_text(text)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert main(["replay", f"--run-dir={tmp_path / 'run'}", "--step=1"]) == 2
    assert "has changed" in capsys.readouterr().err


def test_a_batch_that_is_read_again_has_its_loss(tiny_flags, tmp_path, capsys):
    """Under the weights before the step, the mean of its sequences' losses is the step's, with documents apart too."""
    flags = tiny_flags(tmp_path, ranks=1, max_steps=5, checkpoint_freq=4, document_mask=1)
    assert main(["train", *flags]) == 0
    capsys.readouterr()
    assert main(["replay", f"--run-dir={tmp_path}", "--step=5", "--losses", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    losses = [sequence["loss"] for sequence in again["sequences"]]
    ((step, (loss,)),) = list(history(tmp_path, "loss").items())[-1:]
    assert (step, again["weights_step"], len(losses)) == (5, 4, 8)
    assert sum(losses) / len(losses) == pytest.approx(loss, abs=1e-5)


def test_ranks_that_do_not_divide_the_streams_are_refused(tiny_flags, tmp_path, call_ranks):
    """Three ranks cannot share four streams; other problems are reported with it, by each rank."""
    status, message = call_ranks(3, "train", *tiny_flags(tmp_path, ranks=1, vocab_size=100))
    assert status == 2
    assert message.count("data_streams 4 is not divisible by the 3 ranks") == 3
    assert "vocab_size 100" in message


def test_a_checkpoint_of_another_model_is_refused(undisturbed, tiny_flags, tmp_path, capsys):
    """The difference is named before anything is loaded."""
    flags = tiny_flags(tmp_path, ranks=1, num_layers=3, resume_from_checkpoint=undisturbed / "checkpoints")
    assert main(["train", *flags]) == 2
    assert "belongs to another model: num_hidden_layers 2 there, 3 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 7}, "seed is 12345 in the checkpoint, 7 in this run"),
        ({"data_streams": 8}, "data_streams is 4 in the checkpoint, 8 in this run"),
    ],
)
def test_another_order_of_the_data_is_found_before_the_ranks_meet(
    undisturbed, tiny_flags, tmp_path, capsys, options, message
):
    """An option that a resume cannot change is one line of preflight, with all other problems."""
    flags = tiny_flags(tmp_path, ranks=1, vocab_size=100, resume_from_checkpoint=undisturbed / "checkpoints", **options)
    assert main(["train", *flags]) == 2
    printed = capsys.readouterr().err
    assert f"error: {message}" in printed
    assert "vocab_size 100 is smaller" in printed


def test_one_document_is_enough_to_validate_and_none_is_found_before_the_first_step(
    text_dataset, tiny_flags, tmp_path, capsys
):
    """Streams take turns with the documents of a small split; an empty one is a line of preflight."""
    shutil.copytree(text_dataset / "en", tmp_path / "data" / "en")
    (shard,) = (tmp_path / "data" / "en").glob("c4-validation.*")
    options = {"dataset": tmp_path / "data", "validation_batches": 1, "max_steps": 1}
    shard.write_bytes(gzip.compress(b""))
    assert main(["train", *tiny_flags(tmp_path / "run", ranks=1, **options)]) == 2
    assert "data source dataset has no document in 1 shards" in capsys.readouterr().err
    assert not list(logged(RunFolder(tmp_path / "run")))
    shard.write_bytes(gzip.compress(b'{"text": "the node reads a file"}\n'))
    assert main(["train", *tiny_flags(tmp_path / "run", ranks=1, **options)]) == 0


def test_an_error_of_any_rank_is_shown_once(tmp_path, monkeypatch, capsys):
    """Under torchrun a host prints each problem of its ranks once, whichever rank has it."""
    monkeypatch.setenv("RANK", "1")
    for rank, flags in (("1", ["--lr=0"]), ("0", ["--lr=0", "--beta1=2"])):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / rank / "error.json"))
        assert main(["train", *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: lr: got 0 (flag), need more than 0") == 1
    assert printed.count("error: beta1: got 2 (flag), need less than 1") == 1


def test_a_train_line_reads_as_it_should(tmp_path, capsys):
    """The console line of the reference's spirit, and the same event as one line of JSON."""
    values = {"step": 34, "loss": 7.9661, "samples_per_s": 5.8, "tokens_per_s": 47_500, "mfu": 0.41, "lr": 1e-4}
    Metrics(tmp_path / "metrics.jsonl", active=True).write(TrainEvent(**values))
    assert capsys.readouterr().out == "step 34 | loss 7.966 | 5.80 samples/s | 47.5k tok/s | MFU 41% | lr 1.0e-04\n"
    (event,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {name: event[name] for name in values} == values


def test_a_train_line_says_how_often_the_data_was_read(tmp_path, capsys):
    """From the end of the first epoch on: documents repeat from then."""
    metrics = Metrics(tmp_path / "metrics.jsonl", active=True)
    values = {"step": 34, "loss": 8.0, "samples_per_s": 6.0, "tokens_per_s": 48_000, "lr": 1e-4}
    for epoch, text in ((0.999, ""), (1.0, " | epoch 1"), (2.25, " | epoch 2.25")):
        metrics.write(TrainEvent(**values, epoch=epoch))
        line = f"step 34 | loss 8.000 | 6.00 samples/s | 48.0k tok/s{text} | lr 1.0e-04\n"
        assert capsys.readouterr().out == line


def test_a_range_of_learning_rates_ends_where_the_loss_does(tiny_flags, tmp_path):
    """The run ends well at the first loss that is no number, keeps no such weights, and names the best rate."""
    flags = {"lr_schedule": "range", "min_lr": 1e-6, "lr": 1e30, "max_steps": 100, "checkpoint_freq": 1000}
    assert main(["train", *tiny_flags(tmp_path, ranks=1, **flags)]) == 0
    folder = RunFolder(tmp_path)
    end = list(logged(folder, "end"))[-1]
    assert (end["reason"], end["step"] < 100) == ("range", True)
    assert 1e-6 < end["lr_of_lowest_loss"] < 1e2
    assert not list(folder.checkpoints.glob("step-*"))
