"""Any trainer's job.yaml: what is wrong with it, the scripts it becomes, and its log as our metrics."""

# ruff: noqa: E501, ISC004 -- lines of logs are as long as they are

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright_testing.workspace import wait_until
from podwright_training.__main__ import main
from podwright_training.commands import follow, launch
from podwright_training.errors import ConfigError
from podwright_training.jobs.log_reader import ENDED, STARTED, LogReader
from podwright_training.jobs.patterns import READY
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import JobSpec, Log, Model, is_job, load
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder

EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*/job.yaml"))
PLACES = {"run_dir": "/fsx/runs/a", "nodes": 2, "ranks_per_node": 8, "ranks": 16}

# Lines of real logs with the values that they have; the comment names the source.
LINES = {
    # written in the format of transformers 5 (trainer_callback.py, ProgressCallback), not a real line
    "huggingface": (
        ["{'loss': '5.432', 'grad_norm': '1.25', 'learning_rate': '0.00095', 'epoch': '0.03'}", " 30%|███ | 12/40 [00:01<00:02, 11.4it/s]"],
        {"step": 12, "loss": 5.432, "grad_norm": 1.25, "lr": 0.00095},
    ),
    # https://huggingface.co/tangledgroup/tangled-alpha-0.6-core
    "litgpt": (
        ["Epoch 1 | iter 768 step 3 | loss train: 11.943, val: n/a | iter time: 357.16 ms (step) remaining time: 2 days, 20:38:36"],
        {"step": 3, "loss": 11.943},
    ),
    # https://github.com/NVIDIA/Megatron-LM/issues/449; training_log in megatron/training/training.py still writes so
    "megatron": (
        [
            " iteration      100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): 4320.1 | "
            "learning rate: 3.320E-05 | global batch size:   256 | lm loss: 1.104719E+01 | loss scale: 65536.0 | "
            "grad norm: 3.903 | number of skipped iterations:  17 | number of nan iterations:   0 |"
        ],
        {"step": 100, "loss": 11.04719, "lr": 3.32e-05, "grad_norm": 3.903, "sequences": 25600, "step_s": 4.3201},
    ),
    # the format of training_log in https://github.com/EleutherAI/gpt-neox/blob/main/megatron/logging.py
    "gpt-neox": (
        [
            " samples/sec: 51.234 | iteration       10/      50 | elapsed time per iteration (ms): 9876.5 | learning rate: "
            "1.234E-04 | approx flops per GPU: 150.3TFLOPS | lm_loss: 7.123456E+00 | number of skipped iterations:   0 |"
        ],
        {"step": 10, "loss": 7.123456, "lr": 1.234e-04, "step_s": 9.8765, "samples_per_s": 51.234},
    ),
    # https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/740, as nemo/lightning/pytorch/callbacks/progress_printer.py
    "nemo": (
        [
            "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | "
            "global_step: 120 | reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106"
        ],
        {"step": 121, "loss": 1.233, "lr": 3e-05, "sequences": 121, "step_s": 0.03146},
    ),
    # the format of https://github.com/allenai/OLMo-core/blob/main/src/olmo_core/train/callbacks/console_logger.py
    "olmo-core": (
        ["INFO [console_logger:68] [step=100/2000,epoch=0,eta=5h11m]", "    train/CE loss=6.2341", "    train/PPL=511.9"],
        {"step": 100, "loss": 6.2341},
    ),
    # of DeepSpeed 0.10's engine, after a program's own line with its loss
    "deepspeed": (
        ["loss: 10.8766", "[2023-08-02 00:41:17,935] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=10, lr=[0.0001], mom=[(0.9, 0.999)]"],
        {"step": 10, "loss": 10.8766},
    ),
    # a progress bar of neuronx-nemo-megatron: names and order of _log_metrics in its models' megatron_gpt_model.py
    "neuronx-nemo-megatron": (
        [
            "Epoch 0:   5%|5 | 3/62 [02:59<58:44,  0.02it/s, v_num=8-06, reduced_train_loss=6.930, lr=2.73e-5, "
            "parameter_norm=1.95e+3, global_step=1.000, consumed_samples=32.00, throughput=0.108, gradient_norm=8.600]"
        ],
        {"step": 2, "loss": 6.93, "lr": 2.73e-5, "grad_norm": 8.6, "samples_per_s": 0.108},
    ),
    # names and order of log_metrics in neuronx-distributed-training's lightning_modules/model/base.py, 9169aa0
    "nxdt": (
        [
            "Epoch 0:   0%|          | 41/10000 [21:30<87:03:29, 31.47s/it, v_num=12, reduced_train_loss=7.210, lr=6e-5, "
            "parameter_norm=1.36e+3, gradient_norm=1.920, global_step=40.00, consumed_samples=4.2e+4, throughput=32.70, "
            "throughput_peak=32.80]"
        ],
        {"step": 41, "loss": 7.21, "lr": 6e-5, "grad_norm": 1.92, "sequences": 42000, "samples_per_s": 32.7},
    ),
    # the format of torchtitan 0.3.0's MetricsProcessor, with its colours
    "torchtitan": (
        ["[titan] root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  4.8163  \x1b[38;2;180;60;0mgrad_norm:  1.7  \x1b[34mtps: 1,234  \x1b[39m"],
        {"step": 10, "loss": 4.8163, "grad_norm": 1.7, "tokens_per_s_per_rank": 1234, "tokens_per_s": 2468},
    ),
}  # fmt: skip


def read(spec, *lines, before=(), world_size=2):
    """The events of lines, a second each."""
    reader = LogReader(spec, world_size=world_size, before=dict(before))
    return [event for at, line in enumerate([*lines, f"{ENDED} 1"]) for event in reader.feed(line, 100.0 + at)]


@pytest.mark.parametrize("parser", READY)
def test_each_trainers_line_is_read(parser):
    """A ready parser finds the values of a line of its trainer."""
    lines, expected = LINES[parser]
    (_, event) = read(JobSpec(log=Log(parser=parser)), STARTED, *lines)
    assert {name: event[name] for name in expected} == pytest.approx(expected)


def test_a_restart_goes_back_to_its_checkpoint():
    """Steps of other ranks count once, a start names the step before its first line, and costs are per accelerator."""
    patterns = {"step": r"step (\d+)", "loss": r"loss (\S+)"}
    model = Model(parameters=1e9, tokens_per_step=1000, accelerator="H100")
    spec = JobSpec(log=Log(patterns=patterns), model=model)
    lines = ["step 2 loss 3", "step 2 loss 3", "step 4 loss nan", STARTED, "step 4 loss 2.5", "step 6 loss 2"]
    events = read(spec, STARTED, *lines)
    found = [(event["event"], event["step"]) for event in events]
    assert found == [("start", 0), ("train", 2), ("train", 4), ("start", 2), ("train", 4), ("train", 6)]
    assert events[-1]["step_s"] == 0.5
    assert events[-1]["mfu"] == pytest.approx(6e9 * 2000 / 2 / 989e12, abs=1e-6)
    later = read(spec, STARTED, "step 8 loss 1", before={"step": 7, "tokens": 7000, "stride": 2})
    assert [(event["event"], event["step"]) for event in later] == [("start", 6), ("train", 8)]


@pytest.mark.parametrize(("name", "step"), [("step-5", 5), ("epoch-1", 4), ("last", 4)])
def test_a_start_is_at_its_checkpoint(name, step):
    """The number of a checkpoint is its step, unless the first line after it contradicts that."""
    spec = JobSpec(log=Log(patterns={"step": r"step (\d+)", "loss": r"loss (\S+)"}))
    lines = ["step 2 loss 3", "step 4 loss 3", f"{STARTED}, checkpoint /fsx/a/{name}", "step 6 loss 2"]
    assert [event["step"] for event in read(spec, STARTED, *lines) if event["event"] == "start"] == [0, step]


def test_output_is_one_stream_in_the_order_of_writing(tmp_path):
    """A program's lines and its progress bar, on two streams and without a flush, arrive as they were written."""
    program = "import sys; [print(text, end='', file=sys.stdout if text < 'b' else sys.stderr) for text in 'ababab']"
    spec = JobSpec(command=(sys.executable, "-c", program), launcher="srun")
    text = start_script(spec, {**PLACES, "run_dir": tmp_path}, environment=Path(sys.prefix))
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "PATH": os.environ["PATH"]}
    answer = subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True, env=slurm)
    assert (answer.stdout, answer.stderr) == ("ababab", "")


def test_the_report_reads_such_a_run(tmp_path):
    """A history of these events has losses, tokens, a restart and the job's steps."""
    run = RunFolder(tmp_path)
    spec = JobSpec(command=("a",), log=Log(parser="litgpt"), model=Model(steps=9, tokens_per_step=10))
    run.job.write_text(spec.to_json())
    assert JobSpec.from_json(run.job.read_text()) == spec
    line = "Epoch 1 | iter {0} step {0} | loss train: {0}.5, val: n/a | iter time: 3.1 ms"
    for event in read(spec, STARTED, *(line.format(step) for step in (1, 2, 3)), STARTED, line.format(3)):
        run.append(event)
    history = History.of(run)
    assert [event["loss"] for event in history.train] == [1.5, 2.5, 3.5]
    assert (history.config["max_steps"], history.tokens(history.train[-1])) == (9, 30)
    assert [restart.resumed_after for restart in history.restarts] == [2]


def test_all_that_is_wrong_is_said_with_its_place(tmp_path):
    """Each mistake is one line: file, line, column, what was given and what is allowed."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "kommand: train.py\nlauncher: torchrunn\nnodes: many\nenv: {1A: x}\nfiles: {../x: y}\nmounts: a:b\n"
        "resume: {folder: c}\nlog:\n  parser: hugginface\n  patterns: {losss: 'a(b)', loss: '(a)(b)', lr: '('}\n"
        "model: {accelerator: H10}\nnodes: 2\n"
    )
    with pytest.raises(ConfigError) as error:
        load(file)
    assert [problem.removeprefix(str(file)) for problem in error.value.problems] == [
        ":12:1: nodes is set twice, first in line 3",
        ":1:1: unknown key kommand; did you mean command?",
        ":2:11: launcher: unknown value torchrunn; did you mean torchrun?",
        ":3:8: nodes: got many, need a whole number",
        ":9:11: parser: unknown value hugginface; did you mean huggingface?",
        ":11:22: accelerator: unknown value H10; did you mean H100?",
        ": command is missing: the program that trains, with its arguments",
        ":6:9: mounts: only a container has them; name its image with `container`",
        ":7:9: resume.argument is missing; leave `resume` out if the program finds its checkpoints",
        ":4:6: env: 1A is no name of a variable",
        ":5:8: files: '../x' is not a file of the run's folder",
        ":9:3: log: unknown value losss; did you mean loss?",
        ":9:3: log: loss: (a)(b) has 2 groups, need one: the number; write others as (?:…)",
        ":9:3: log: lr: ( is no regular expression: missing ), unterminated subpattern at position 0",
        ":9:3: log: no expression for step: name a parser, or add to patterns",
    ]
    assert is_job(file)


@pytest.mark.parametrize(
    "text",
    [
        *("", "- a", "a: [", "command: 'a", "[" * 5000),
        *('command: a\nenv: {A: "\\0"}', "command: a\nenv: {A: [1]}", "command: a\nenv: {Aé: b}"),
        'command: a\nfiles: {a: "\\ud800"}',
        *(
            f"command: a\nresume: {{argument: '{{checkpoint}}', {key}}}"
            for key in ("newest: a/b-*", "complete: a/b", "folder: '{checkpoint}'")
        ),
        *(f"command: a\nfiles: {{{name}: b}}" for name in ("metrics.jsonl", '"a\\nb"', "a/b: c, a", "n" * 201)),
        *(
            f"command: a\nfiles: {{a: {content}}}"
            for content in (".nan", "!!set {b}", "!!binary YQ==", "{2026-01-01: b}")
        ),
        "command: &a [b, b, b, b, b, b, b, b, b, b]\nfiles:"
        + "".join(
            f"\n  {n}: &{n} [{', '.join(['*' + before] * 10)}]" for before, n in zip("abcde", "bcdef", strict=True)
        ),
    ],
)
def test_a_broken_file_is_one_line(text, tmp_path):
    """A file that is no mapping in YAML, or has what JSON does not express, is refused in one line."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert len(error.value.problems) == 1
    is_job(file)


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", "-3", "1.2.3", "many", "1e30"])
def test_an_impossible_number_is_left_out(value):
    """Tokens that are no number are left out, and the step stays; without a number it is no step."""
    patterns = {"step": r"step (\S+)", "loss": r"loss (\S+)", "tokens": r"tokens (\S+)"}
    lines = [f"step 1 loss 2 tokens {value}", f"step {value} loss 2", "step 2 loss 1 tokens 9"]
    events = read(JobSpec(log=Log(patterns=patterns)), STARTED, *lines)[1:]
    assert [(event["step"], event.get("tokens")) for event in events] == [(1, None), (2, 9)]


def test_an_expression_without_end_does_not_hold_the_nodes(tmp_path, monkeypatch, capsys):
    """The batch script waits for the process that follows the log, so it ends."""
    run = RunFolder(tmp_path)
    patterns = {"step": r"(\d+)", "loss": r"^(?:a+)+(b)$"}
    run.job.write_text(JobSpec(command=("a",), log=Log(patterns=patterns)).to_json())
    run.log.write_text("a" * 50 + "\n")
    monkeypatch.setattr(follow, "LINE_S", 1)
    assert main(["follow", "--run-dir", str(tmp_path), "--ranks", "1"]) == 2
    assert "error: log.patterns: a line took over 1 s" in capsys.readouterr().err


def test_a_log_that_is_emptied_or_has_no_lines_is_followed(tmp_path, monkeypatch):
    """Lines after the log was emptied arrive, and of a line without end only what expressions see is kept."""
    monkeypatch.setattr(follow, "POLL_S", 0)
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * 1_000_000 + "\n")
    lines = follow._lines(log, 0)
    assert next(lines) == ("first", 0, 6)
    text, *span = next(lines)
    assert (len(text) < 1 << 17, span) == (True, [6, 1_000_007])
    log.write_text("again\n")
    assert [next(lines), next(lines)] == [(None, 0, 0), ("again", 0, 6)]


KILLED = """=== job 5, restart 0
=== program starts
step 1
 loss 4
step 2
 loss 3
"""
UNREAD = """step 3
 loss 2
Traceback (most recent call last):
=== job 5, restart 1
"""
RESTARTED = """=== program starts, checkpoint step-2
step 3
 loss 1.5
=== program ended with 0
"""


@pytest.mark.parametrize("order", ["after", "before"])
def test_what_a_killed_follower_left_is_read_by_the_next(tmp_path, order):
    """The last lines of a node that was lost become events once, and the restart after them begins at its checkpoint."""
    text = [KILLED, UNREAD, RESTARTED]
    if order == "after":
        text = [re.sub(r"(step \d)\n( loss .*)\n", r"\2\n\1\n", part) for part in text]
    run = RunFolder(tmp_path)
    patterns = {"step": r"^step (\d+)$", "loss": r"loss (\S+)"}
    run.job.write_text(JobSpec(command=("a",), log=Log(patterns=patterns, step_line=order)).to_json())
    run.log.write_text(text[0])
    words = [sys.executable, "-m", "podwright_training", "follow", f"--run-dir={tmp_path}", "--ranks=1"]
    with subprocess.Popen(words) as killed:
        try:
            wait_until(lambda: [event["step"] for event in run.events("train")] == [1, 2])
        finally:
            killed.kill()
    run.log.write_text("".join(text[:2]))
    begin = run.log.stat().st_size
    run.log.write_text("".join(text))
    assert main(["follow", f"--run-dir={tmp_path}", "--ranks=1", f"--from-byte={begin}"]) == 0
    found = [(event["event"], event["step"], event.get("loss")) for event in run.events()]
    first = [("start", 0, None), ("train", 1, 4), ("train", 2, 3), ("train", 3, 2)]
    assert found == [*first, ("start", 2, None), ("train", 3, 1.5), ("end", 3, None)]


def test_every_ready_job_becomes_sound_scripts(tmp_path):
    """Each example is a job whose log can be read, and shellcheck finds nothing in its scripts."""
    scripts = []
    for number, file in enumerate(EXAMPLES):
        spec = load(file)
        assert is_job(file)
        assert LogReader(spec, world_size=1).can_read
        job = launch.Job(
            run=RunFolder(Path("/fsx/runs/a")), nodes=2, nproc_per_node=8, environment=Path("/fsx/venv"), spec=spec
        )
        texts = launch.render(job), start_script(spec, PLACES, environment=job.environment)
        for kind, text in zip(("sbatch", "sh"), texts, strict=True):
            scripts.append(tmp_path / f"{number}.{kind}")
            scripts[-1].write_text(text)
    assert scripts
    shellcheck = Path(sys.prefix) / "bin" / "shellcheck"
    found = subprocess.run([shellcheck, *scripts], check=False, capture_output=True, text=True)
    assert found.stdout == ""


def test_a_job_is_not_elastic_and_has_no_preset(tmp_path):
    """Options that only our trainer has are refused with a job, all at once."""
    file = tmp_path / "job.yaml"
    file.write_text("command: a\nranks_per_node: 1\n")
    with pytest.raises(launch.LaunchError) as error:
        launch.plan(parsed("--job", str(file), "--nodes", "1-2", "--preset", "tiny"), launch.Nodes())
    assert len(str(error.value).splitlines()) == 2
    job = launch.plan(parsed("--job", str(file), "--run-dir", str(tmp_path)), launch.Nodes())
    assert (job.nodes, job.nproc_per_node) == (1, 1)
    file.write_text("command: a\nname: mine\nranks_per_node: 1\n")
    assert launch.plan(parsed("--job", str(file)), launch.Nodes(shared_root="/fsx")).run.root == Path("/fsx/runs/mine")
    with pytest.raises(launch.LaunchError, match="got /elsewhere, need a folder below /fsx"):
        launch.plan(parsed("--job", str(file), "--run-dir", "/fsx/../elsewhere"), launch.Nodes(shared_root="/fsx"))


def parsed(*words):
    """The flags of launch."""
    from argparse import ArgumentParser

    parser = ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args(words)


def test_events_are_whole_numbers_where_the_report_needs_them():
    """Tokens and sequences are written as JSON's whole numbers."""
    events = read(JobSpec(log=Log(parser="megatron"), model=Model(tokens_per_step=1e6)), STARTED, *LINES["megatron"][0])
    assert json.loads(json.dumps(events[-1]))["tokens"] == 100_000_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no JSON at line 1, column 2: Expecting property name"),
        ("", "no JSON at line 1, column 1"),
        ("[]", "not the shape that launch writes"),
        ("{}", "the key command is missing"),
        ('{"command": ["a"], "mounts": [], "resume": null, "log": {}, "model": {}, "more": 1}', "'more'"),
        (b"\xff", "no text in UTF-8 at byte 0"),
        (None, "No such file or directory"),
    ],
)
def test_a_damaged_job_is_named(tmp_path, capsys, content, reason):
    """An unreadable job.json is one line: the file, what is wrong, and what to do."""
    if content is not None:
        (tmp_path / "job.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["follow", f"--run-dir={tmp_path}", "--ranks=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/job.json: ")
    assert reason in line
    assert line.endswith(f"start the run again, which writes it: podwright-train launch --run-dir {tmp_path} …")
