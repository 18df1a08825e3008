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
from podwright_testing.metrics import logged
from podwright_testing.workspace import wait_until
from podwright_training.__main__ import main
from podwright_training.commands import follow, launch
from podwright_training.errors import ConfigError, LaunchError
from podwright_training.hardware import NEURON_PEAK_FLOPS, PEAK_FLOPS
from podwright_training.jobs.log_reader import ENDED, STARTED, LogProgress, LogReader
from podwright_training.jobs.patterns import READY
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import JobSpec, Log, Model, is_job, load
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder
from podwright_training.slurm import batch_script, job_plan, node_facts, submission

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


def read(spec, *lines, before=None, world_size=2):
    """The events of lines, a second each."""
    reader = LogReader(spec, world_size=world_size, before=before)
    return [event for at, line in enumerate([*lines, f"{ENDED} 1"]) for event in reader.feed(line, 100.0 + at)]


@pytest.mark.parametrize("parser", READY)
def test_each_trainers_line_is_read(parser):
    """A ready parser finds the values of a line of its trainer."""
    lines, expected = LINES[parser]
    (_, event) = read(JobSpec(log=Log(parser=parser)), STARTED, *lines)
    assert {name: getattr(event, name) for name in expected} == pytest.approx(expected)


def test_a_restart_goes_back_to_its_checkpoint():
    """Steps of other ranks count once, a start names the step before its first line, and costs are per accelerator."""
    patterns = {"step": r"step (\d+)", "loss": r"loss (\S+)"}
    model = Model(parameters=1e9, tokens_per_step=1000, accelerator="H100")
    spec = JobSpec(log=Log(patterns=patterns), model=model)
    lines = ["step 2 loss 3", "step 2 loss 3", "step 4 loss nan", STARTED, "step 4 loss 2.5", "step 6 loss 2"]
    events = read(spec, STARTED, *lines)
    found = [(event.kind, event.step) for event in events]
    assert found == [("start", 0), ("train", 2), ("train", 4), ("start", 2), ("train", 4), ("train", 6)]
    assert events[-1].step_s == 0.5
    assert events[-1].mfu == pytest.approx(6e9 * 2000 / 2 / 989e12, abs=1e-6)
    later = read(spec, STARTED, "step 8 loss 1", before=LogProgress(step=7, tokens=7000, stride=2))
    assert [(event.kind, event.step) for event in later] == [("start", 6), ("train", 8)]


@pytest.mark.parametrize(("name", "step"), [("step-5", 5), ("epoch-1", 4), ("last", 4)])
def test_a_start_is_at_its_checkpoint(name, step):
    """The number of a checkpoint is its step, unless the first line after it contradicts that."""
    spec = JobSpec(log=Log(patterns={"step": r"step (\d+)", "loss": r"loss (\S+)"}))
    lines = ["step 2 loss 3", "step 4 loss 3", f"{STARTED}, checkpoint /fsx/a/{name}", "step 6 loss 2"]
    assert [event.step for event in read(spec, STARTED, *lines) if event.kind == "start"] == [0, step]


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
    assert [event.loss for event in history.train] == [1.5, 2.5, 3.5]
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
        ":12:1: nodes is set twice; the first is in line 3; keep one of them",
        ":1:1: unknown key kommand; did you mean command?",
        ":2:11: launcher: got torchrunn, need one of torchrun, deepspeed, accelerate, srun; did you mean torchrun?",
        ":3:8: nodes: got many, need a whole number",
        f":9:11: parser: got hugginface, need one of {', '.join(READY)}; did you mean huggingface?",
        f":11:22: accelerator: got H10, need one of {', '.join([*PEAK_FLOPS, *NEURON_PEAK_FLOPS])}; did you mean H100?",
        ": command is missing: the program that trains, with its arguments",
        ":6:9: mounts: only a container has them; name its image with `container`",
        ":7:9: resume.argument is missing; leave `resume` out if the program finds its checkpoints",
        ":4:6: env: 1A is not a variable name",
        ":5:8: files: '../x' is not a file of the run's folder",
        ":9:3: log: unknown value losss; did you mean loss?",
        ":9:3: log: loss: (a)(b) has 2 groups, need one: the number; write others as (?:…)",
        ":9:3: log: lr: ( is not a regular expression: missing ), unterminated subpattern at position 0",
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


WRONG = {  # a value of a sound job, and what the message has
    "nodes: 0": "nodes: got 0, need 1 to 10000",
    "nodes: -1": "got -1",
    "nodes: 1.5": "nodes: got 1.5, need a whole number",
    "nodes: 99999999999999999999999999": "got 99999999999999999999999999, need 1 to 10000",
    f"nodes: 0x{'f' * 5000}": f"nodes: got 0x{'f' * 78}…, need a whole number of at most 100 characters",
    f"nodes: {'9' * 5000}": f"nodes: got {'9' * 80}…, need a whole number of at most 100 characters",
    "nodes: yes": "nodes: got yes, need a whole number",
    "nodes: [2]": "nodes: got a list, need a whole number",
    "nodes: {a: 2}": "nodes: got a mapping, need a whole number",
    'nodes: "2\\n3"': "nodes: got 2\\n3, need a whole number",
    'nodes: !!int ""': "not YAML: the value does not match its tag",
    "nodes: !!bool x": "not YAML: the value does not match its tag",
    "nodes: !!timestamp x": "not YAML: the value does not match its tag",
    "nodes: !!python/object:os.system x": "not YAML: could not determine a constructor",
    "ranks_per_node: 1e3": "got 1e3, need a whole number",
    "ranks_per_node: 5000": "got 5000, need 0 to 1024",
    "launcher: mpirun": "launcher: got mpirun, need one of torchrun, ",
    f"launcher: {'x' * 500}": f"got {'x' * 80}…, need one of torchrun",
    "stop_signal: KILL": "got KILL, need one of TERM",
    "name: ../../etc": "name: got ../../etc, need up to 100 letters",
    'name: "a b"': "name: got a b, need",
    "mounts: fsx": "mounts: got fsx, need SOURCE:TARGET",
    "mounts: ['/a:/b,/c:/d']": "mounts: got /a:/b,/c:/d, need SOURCE:TARGET, without commas",
    "container: [a]": "container: got a list, need one value",
    "environment: /a": "environment: a container has its own",
    "env: A=1": "env: got a text, need `NAME: value` lines",
    "env: {UID: 0}": "env: UID is Bash's own",
    "env: {A: 1, A: 2}": "A is set twice; the first is in line 3",
    "env: {A-B: 1}": "env: A-B is not a variable name",
    "env: {? [a]: 1}": "this key is not a word",
    "env: {A: '{runs_dir}'}": "unknown place {runs_dir}; did you mean {run_dir}?",
    "files: {/etc/passwd: x}": "files: '/etc/passwd' is not a file of the run's folder",
    "files: {a: {b: 1, b: 2}}": "b is set twice",
    "files: [a]": "files: got a list, need `NAME: value` lines",
    "files: {train.sbatch: x}": "train.sbatch is podwright-train's own",
    "resume: yes": "resume: need `key: value` lines",
    "resume: {argument: '{checkpoint}', folders: a}": "unknown key folders; did you mean folder?",
    "resume: {argument: [a, [b]]}": "argument: each word of the list is one value",
    'resume: {argument: "it\'s"}': "argument: No closing quotation; quotes of a shell go in pairs",
    "log: {parser: lightning}": "parser: got lightning, need one of huggingface",
    "log: {patterns: {step: '(a{99999999999})', loss: (b)}}": "is not a regular expression",
    "log: {patterns: {step: '[[a](b)'}}": "no expression for loss",
    f"log: {{patterns: {{step: {'(' * 300}, loss: (b)}}}}": "…",
    "model: {parameters: many}": "parameters: got many, need a number",
    "model: {parameters: .inf}": "parameters: got .inf, need 0 to 1e+15",
    "model: {parameters: .nan}": "parameters: got .nan, need 0 to 1e+15",
    "model: {parameters: 1e300}": "parameters: got 1e300, need 0 to 1e+15",
    "model: {steps: -5}": "steps: got -5, need 0 to 1e+12",
    "model: {accelerator: RTX}": "accelerator: got RTX, need one of B",
    "model: 5": "model: need `key: value` lines",
    "<<: 2": "<< adds the keys of a mapping",
    "Nodes: 2": "unknown key Nodes; did you mean nodes?",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items(), ids=[line[:40] for line in WRONG])
def test_a_wrong_value_is_one_short_line(line, message, tmp_path, recwarn):
    """With its place; Python warns of nothing, and no value is printed at length."""
    file = tmp_path / "job.yaml"
    file.write_text(f"command: a\ncontainer: b\n{line}\n" if "container" not in line else f"command: a\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load(file)
    (problem,) = error.value.problems
    assert message in problem
    assert re.match(rf"{re.escape(str(file))}:\d+:\d+: ", problem)
    assert "\n" not in problem
    assert len(problem) < len(str(file)) + 400
    assert not recwarn


def test_a_file_that_is_none_is_one_line(tmp_path):
    """A folder, a binary file, one that never ends, a link to itself and one that is not there."""
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "utf16").write_text("command: a", encoding="utf-16")
    (tmp_path / "large").write_text("# " + "x" * (1 << 20))
    (tmp_path / "loop").symlink_to("loop")
    for file in (tmp_path, *(tmp_path / name for name in ("binary", "utf16", "large", "loop", "no", "x" * 300))):
        with pytest.raises(ConfigError) as error:
            load(file)
        assert len(error.value.problems) == 1
        assert not is_job(file)
    with pytest.raises(ConfigError, match="is a device, not a regular file"):
        load(Path("/dev/zero"))
    assert not is_job(Path("/dev/zero"))


def test_texts_are_as_they_are_written(tmp_path):
    """YAML would read a version as a number, a time as seconds, on as true, and Python 1 as true."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [train.py, --version, 1.10, --lr, 1e-3, --date, 2026-01-02, on]\nname: 007\n"
        "env: {ONE: 1, ZERO: 0, VERSION: 1.10, TIME: 12:30, Y: yes, NO: no, DAY: 2026-13-45, NONE: , MASK: 0x1F}\n"
    )
    job = load(file)
    assert job.command == ("train.py", "--version", "1.10", "--lr", "1e-3", "--date", "2026-01-02", "on")
    assert job.name == "007"
    assert job.env == {
        "ONE": "1",
        "ZERO": "0",
        "VERSION": "1.10",
        "TIME": "12:30",
        "Y": "yes",
        "NO": "no",
        "DAY": "2026-13-45",
        "NONE": "",
        "MASK": "0x1F",
    }


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("environment: /proc/nothing", "sbatch not found"),  # on another file system: nodes may have it
        ("environment: nothing", "environment: got nothing, which has no folder bin: name a virtual environment"),
        ("container: ./image.sqsh", "container: got ./image.sqsh, which is not a file: name an image's file"),
        ("files: {folder: x}", "files: folder is a folder in "),
        ("files: {file/a: x}", "file, which is a file"),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_written(job, message, tmp_path, capsys, monkeypatch):
    """In one line each; a job that would fail on its nodes does not wait for them."""
    run, file = tmp_path / "run", tmp_path / "job.yaml"
    (run / "folder").mkdir(parents=True)
    (run / "file").touch()
    file.write_text(f"command: a\nranks_per_node: 1\n{job}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "podwright-train").touch()
    monkeypatch.setenv("PATH", "")
    before = sorted(run.rglob("*"))
    words = ["launch", f"--job={file}", f"--run-dir={run}", f"--environment={tmp_path}", "--accelerator=cpu"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert message.startswith("sbatch") or sorted(run.rglob("*")) == before


def test_a_run_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    """A file of its name, one in its path, and a link to nothing."""
    file = tmp_path / "job.yaml"
    file.write_text("command: a\nranks_per_node: 1\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "podwright-train").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing" / "there")
    for place in ("job.yaml", "job.yaml/run", "link", "/proc/nothing"):
        words = ["launch", f"--job={file}", f"--run-dir={tmp_path / place}", f"--environment={tmp_path}"]
        assert main([*words, "--accelerator=cpu"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: --run-dir: cannot write ")


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", "-3", "1.2.3", "many", "1e30"])
def test_an_impossible_number_is_left_out(value):
    """Tokens that are no number are left out, and the step stays; without a number it is no step."""
    patterns = {"step": r"step (\S+)", "loss": r"loss (\S+)", "tokens": r"tokens (\S+)"}
    lines = [f"step 1 loss 2 tokens {value}", f"step {value} loss 2", "step 2 loss 1 tokens 9"]
    events = read(JobSpec(log=Log(patterns=patterns)), STARTED, *lines)[1:]
    assert [(event.step, event.tokens) for event in events] == [(1, None), (2, 9)]


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
            wait_until(lambda: [event["step"] for event in logged(run, "train")] == [1, 2])
        finally:
            killed.kill()
    run.log.write_text("".join(text[:2]))
    begin = run.log.stat().st_size
    run.log.write_text("".join(text))
    assert main(["follow", f"--run-dir={tmp_path}", "--ranks=1", f"--from-byte={begin}"]) == 0
    found = [(event["event"], event["step"], event.get("loss")) for event in logged(run)]
    first = [("start", 0, None), ("train", 1, 4), ("train", 2, 3), ("train", 3, 2)]
    assert found == [*first, ("start", 2, None), ("train", 3, 1.5), ("end", 3, None)]


def test_every_ready_job_becomes_sound_scripts(tmp_path):
    """Each example is a job whose log can be read, and shellcheck finds nothing in its scripts."""
    scripts = []
    for number, file in enumerate(EXAMPLES):
        spec = load(file)
        assert is_job(file)
        assert LogReader(spec, world_size=1).can_read
        job = batch_script.Job(
            run=RunFolder(Path("/fsx/runs/a")), nodes=2, nproc_per_node=8, environment=Path("/fsx/venv"), spec=spec
        )
        texts = batch_script.render(job), start_script(spec, PLACES, environment=job.environment)
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
    with pytest.raises(LaunchError) as error:
        job_plan.plan(parsed("--job", str(file), "--nodes", "1-2", "--preset", "tiny"), node_facts.NodeFacts())
    assert len(str(error.value).splitlines()) == 2
    job = job_plan.plan(parsed("--job", str(file), "--run-dir", str(tmp_path)), node_facts.NodeFacts())
    assert (job.nodes, job.nproc_per_node) == (1, 1)
    file.write_text("command: a\nname: mine\nranks_per_node: 1\n")
    assert job_plan.plan(parsed("--job", str(file)), node_facts.NodeFacts(shared_root="/fsx")).run.root == Path(
        "/fsx/runs/mine"
    )
    with pytest.raises(LaunchError, match="got /elsewhere, need a folder below /fsx"):
        job_plan.plan(
            parsed("--job", str(file), "--run-dir", "/fsx/../elsewhere"), node_facts.NodeFacts(shared_root="/fsx")
        )


def test_mfu_is_of_the_nodes_accelerator_unless_the_job_names_one(tmp_path):
    """Each kind of nodes has its own peak, a core's of Trainium; on CPUs, and of an unknown one, there is no MFU."""
    file = tmp_path / "job.yaml"
    file.write_text("command: a\nmodel: {parameters: 1e9, tokens_per_step: 1000}\nlog: {parser: litgpt}\n")
    words = parsed("--job", str(file), "--run-dir", str(tmp_path), "--nproc-per-node", "8")
    kinds = {"H100": "gpu", "A10G": "gpu", "Trainium": "neuron", "GB999": "gpu", "": ""}
    speed = {}
    for name, kind in kinds.items():
        spec = job_plan.plan(words, node_facts.NodeFacts(accelerator=kind, accelerator_name=name)).spec
        line = "Epoch 1 | iter {0} step {0} | loss train: 3.5, val: n/a | iter time: 3.1 ms"
        speed[name] = read(spec, STARTED, *(line.format(step) for step in (1, 2)))[-1].mfu
    flops_per_s = 6e9 * 1000 / 2
    peaks = {"H100": 989e12, "A10G": 70e12, "Trainium": 95e12}
    expected = {name: pytest.approx(flops_per_s / peak, abs=1e-6) for name, peak in peaks.items()}
    assert speed == {**expected, "GB999": None, "": None}
    on_cpus = parsed("--job", str(file), "--run-dir", str(tmp_path), "--nproc-per-node", "8", "--accelerator", "cpu")
    gpus = node_facts.NodeFacts(accelerator="gpu", accelerator_name="H100")
    assert job_plan.plan(on_cpus, gpus).spec.model.accelerator == ""
    file.write_text("command: a\nmodel: {accelerator: A100}\n")
    assert job_plan.plan(words, gpus).spec.model.accelerator == "A100"


STAND_INS = {  # of Slurm's programs on a node; the first only lists the hosts
    "scontrol": "echo node-1",
    "srun": 'while [[ $1 == --* ]]; do shift; done; SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 exec "$@"',
    "podwright-train": "",
}


def test_a_job_has_the_variables_of_its_nodes_and_its_own_before_them(tmp_path):
    """The batch script sets those for EFA that our trainer gets; what job.yaml or the submitter sets is stronger."""
    run, programs = RunFolder(tmp_path / "run"), tmp_path / "bin"
    programs.mkdir()
    for name, text in {**STAND_INS, "python": f'exec {sys.executable} "$@"'}.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    spec = JobSpec(command=("env",), launcher="srun", env={"NCCL_SOCKET_IFNAME": "eth0", "MINE": "{ranks}"})
    job = batch_script.Job(
        run=run, nodes=1, nproc_per_node=1, environment=tmp_path, accelerator="gpu", efa=True, spec=spec
    )  # fmt: skip
    run.root.mkdir()
    run.log.touch()
    submission._write_job(job, spec)
    run.sbatch.write_text(batch_script.render(job))
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
    given = {**slurm, "PATH": f"{programs}:{os.environ['PATH']}", "FI_EFA_USE_HUGE_PAGE": "1", "TMPDIR": str(tmp_path)}
    printed = subprocess.run(["bash", run.sbatch], env=given, check=True, capture_output=True, text=True).stdout
    found = dict(line.split("=", 1) for line in printed.splitlines() if re.match(r"\w+=", line))
    wanted = {"FI_PROVIDER": "efa", "FI_EFA_SET_CUDA_SYNC_MEMOPS": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    theirs = {"NCCL_SOCKET_IFNAME": "eth0", "FI_EFA_USE_HUGE_PAGE": "1", "MINE": "1"}
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/podwright-{os.geteuid()}/inductor"}
    assert (wanted | theirs | caches).items() <= found.items()


def test_a_job_does_not_start_with_a_cache_that_others_can_write(tmp_path):
    """A job.yaml whose variables name such a folder ends with one line before its program runs."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    spec = JobSpec(command=("echo", "started"), launcher="srun", env={"TRITON_CACHE_DIR": str(theirs)})
    text = start_script(spec, {**PLACES, "run_dir": tmp_path}, environment=Path(sys.prefix))
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "PATH": os.environ["PATH"]}
    answer = subprocess.run(["bash", "-c", text], check=False, capture_output=True, text=True, env=slurm)
    assert answer.returncode == 2
    (line,) = answer.stdout.splitlines()
    assert line.startswith(f"error: TRITON_CACHE_DIR: {theirs}: got owner uid")


def parsed(*words):
    """The flags of launch."""
    from argparse import ArgumentParser

    parser = ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args(words)


def test_events_are_whole_numbers_where_the_report_needs_them():
    """Tokens and sequences are written as JSON's whole numbers."""
    events = read(JobSpec(log=Log(parser="megatron"), model=Model(tokens_per_step=1e6)), STARTED, *LINES["megatron"][0])
    assert json.loads(json.dumps(events[-1].to_dict()))["tokens"] == 100_000_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no JSON at line 1, column 2: Expecting property name"),
        ("", "no JSON at line 1, column 1"),
        ("[]", "not the shape that launch writes"),
        ("{}", "the key command is missing"),
        ('{"command": ["a"], "mounts": [], "resume": null, "log": {}, "model": {}, "more": 1}', "'more'"),
        (b"\xff", "not UTF-8: byte 0xff at 0"),
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
