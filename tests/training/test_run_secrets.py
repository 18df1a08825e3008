"""Secrets of a run: read from files that only their user can read, and written nowhere else."""

import asyncio
import os
import shlex
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from podwright_testing.hugging_face_hub import Hub
from podwright_training.__main__ import _parser, _variables, main
from podwright_training.config import sources
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import ConfigError, UserError
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import JobSpec
from podwright_training.jobs.spec import load as load_job
from podwright_training.run_folder import RunFolder
from podwright_training.run_variables import problems_of_env, read_secret, variables_of_run
from podwright_training.slurm.batch_script import Job, render

TOKEN = "hf_" + "Planted" * 5
NAME = "someone/gated"


def secret_file(path, content=TOKEN + "\n", mode=0o600):
    """Write a file with a secret."""
    path.write_bytes(content.encode())
    path.chmod(mode)
    return path


def holders(folder):
    """Return the files below a folder that contain the token."""
    return [path for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.fixture
def hub(word_tokenizer, tmp_path, monkeypatch):
    """A hub on loopback whose only tokenizer needs the token; programs use it with an empty cache."""
    word_tokenizer.save_pretrained(tmp_path / "hub")
    handler = partial(Hub, tmp_path / "hub", NAME, Counter(), token=TOKEN)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    yield f"http://127.0.0.1:{server.server_port}/rank-0"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_gated_tokenizer_reaches_every_rank_and_the_token_nothing_that_is_written(call, hub, tiny_flags, tmp_path):
    """Ranks get variables and token by run.yaml; no file of the run and no output has the token."""
    token, run = secret_file(tmp_path / "token"), tmp_path / "run"
    flags = tiny_flags(run, ranks=2, tokenizer=NAME, vocab_size=1000, max_steps=2, checkpoint_freq=2)
    file = tmp_path / "run.yaml"
    file.write_text(f"env: {{HF_ENDPOINT: '{hub}'}}\nsecrets: {{HF_TOKEN: {token}}}\n")

    status, output = call("train", "--config", str(file), *flags, ranks=2)
    assert status == 0, output
    assert TOKEN not in output
    assert f"HF_TOKEN: {token}" in (run / "config.yaml").read_text()

    status, output = call("consolidate", "--run-dir", str(run))
    assert status == 0, output
    status, output = call("evaluate", "--run-dir", str(run))
    assert status == 0, output
    status, output = call("report", "--run-dir", str(run))
    assert status == 0, output
    assert holders(tmp_path) == [token]


@pytest.mark.slow
def test_tokenize_asks_a_gated_hub_with_the_token_of_a_file(call, hub, text_dataset, tmp_path, monkeypatch):
    """Without a token the message says how to give one; with it the tokenizer is read."""
    monkeypatch.setenv("HF_ENDPOINT", hub)
    flags = ("--dataset", str(text_dataset), "--tokenizer", NAME, "--output", str(tmp_path / "tokens"))
    status, output = call("tokenize", *flags)
    assert status == 2
    assert "if it is gated or private, put your token into a file that only you can read: secrets HF_TOKEN=" in output

    token = secret_file(tmp_path / "token")
    status, output = call("tokenize", *flags, f"--secrets=HF_TOKEN={token}")
    assert status == 0, output
    assert TOKEN not in output
    assert holders(tmp_path) == [token]


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n"])
def test_the_end_of_a_line_is_no_part_of_a_secret(content, tmp_path):
    """Editors and echo write it."""
    assert read_secret("HF_TOKEN", str(secret_file(tmp_path / "token", content))) == TOKEN


def test_a_home_is_the_users_own(tmp_path, monkeypatch):
    """~ is the home of whoever reads the secret."""
    monkeypatch.setenv("HOME", str(tmp_path))
    secret_file(tmp_path / "token")
    assert read_secret("HF_TOKEN", "~/token") == TOKEN


FAULTS = {
    "missing": (Path.exists, "{path}: No such file or directory; need a file of your own with the secret"),
    "a folder": (lambda path: path.mkdir(), "{path}: is a folder, not a regular file; need a file of your own"),
    "empty": (lambda path: secret_file(path, "\n"), "{path} is empty, need the secret in it"),
    "two lines": (lambda path: secret_file(path, "a\nb\n"), "{path}: need one line of text, at most 64 KiB"),
    "trailing blank": (
        lambda path: secret_file(path, f"{TOKEN} \n"),
        "{path} has a blank before or after the secret; delete the blank",
    ),
    "no text": (
        lambda path: path.write_bytes(b"\xff") and path.chmod(0o600),
        "{path}: need one line of text, at most 64 KiB",
    ),
    "of a group": (lambda path: secret_file(path, mode=0o640), "{path}: got mode 640, with which others may use it; "),
    "of all": (lambda path: secret_file(path, mode=0o604), "got mode 604, with which others may use it; chmod 600 "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_file_is_one_line_before_a_job_queues(name, tmp_path, capsys):
    """Our trainer's launch and another trainer's are refused with the same line, and write nothing."""
    prepare, message = FAULTS[name]
    prepare(tmp_path / "token")
    (tmp_path / "run.yaml").write_text(f"secrets: {{HF_TOKEN: {tmp_path / 'token'}}}\n")
    (tmp_path / "job.yaml").write_text(f"command: a\nsecrets: {{HF_TOKEN: {tmp_path / 'token'}}}\n")
    common = ("launch", "--nodes=1", "--nproc-per-node=1", f"--run-dir={tmp_path / 'run'}")
    for words in ((f"--job={tmp_path / 'job.yaml'}",), ("--", "--config", str(tmp_path / "run.yaml"))):
        assert main([*common, *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: secrets: HF_TOKEN: ")
        assert message.format(path=tmp_path / "token") in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("owner", [1234])
def test_another_users_file_is_refused(owner, tmp_path):
    """Root can read it, and would use somebody else's token."""
    if os.geteuid():
        pytest.skip("needs root")
    os.chown(secret_file(tmp_path / "token"), owner, -1)
    with pytest.raises(UserError, match="belongs to uid 1234, need a file of your own"):
        read_secret("HF_TOKEN", str(tmp_path / "token"))


WRONG = {
    f"secrets: {{HF_TOKEN: {TOKEN}}}": "secrets: HF_TOKEN: need the path of a file that contains the secret, beginning",
    "secrets: {HF_TOKEN: token}": "beginning with / or ~/ and without : and , (never the secret itself)",
    "secrets: {HF_TOKEN: }": "secrets: HF_TOKEN: need the path of a file",
    "secrets: {K: 'arn:aws:secretsmanager:us-west-2:1:secret:a'}": "get-secret-value --secret-id arn:aws:secrets",
    f"secrets: {{'{TOKEN} ': /a}}": "secrets: need `VARIABLE: /path/of/a/file` lines",
    f"secrets: {TOKEN}": "secrets: got a text, need `NAME: value` lines",
    f"env: HF_TOKEN={TOKEN}": "env: got a text, need `NAME: value` lines",
    f"secrets: {{{TOKEN}: }}": "secrets: VARIABLE: need the path of a file",
    f"secrets: {{{TOKEN}: {{}}}}": "secrets: a variable: got a mapping, need one value",
    f"env: {{{TOKEN}: [1]}}": "env: a variable: got a list, need one value",
    f"env: {{{TOKEN}: }}": "env: VARIABLE looks like a secret",
    f"env: {{A: {TOKEN}}}": "env: A looks like a secret",
    "secrets: {UID: /a}": "secrets: UID is Bash's own, which cannot be set",
    "secrets: {A: /a}\nenv: {A: b}": "secrets: A is in env, too; keep one of the two",
    f"env: {{HF_TOKEN: {TOKEN}}}": "env: HF_TOKEN looks like a secret, and others can read a run's configuration: ",
    f"env: {{WANDB_API_KEY: {TOKEN}}}": "name the file in `secrets: {WANDB_API_KEY: /fsx/…}`",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_secret_in_place_of_its_file_is_refused_and_not_repeated(line, tmp_path):
    """In run.yaml and in job.yaml alike."""
    for name, load in (("run.yaml", sources.load_file), ("job.yaml", load_job)):
        file = tmp_path / name
        file.write_text(line + ("\n" if name == "run.yaml" else "\ncommand: a\n"))
        with pytest.raises(ConfigError) as error:
            load(file)
        (problem,) = error.value.problems
        assert WRONG[line] in problem
        assert TOKEN not in problem


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HFTOKEN",
        "PGPASSWORD",
        "MYSQL_PWD",
        "WANDB_KEY",
        "OPENAI_KEY",
        "GITHUB_PAT",
        "DB_PASS",
        "REDIS_PASSWD",
        "PRIVATE_KEY",
        "APIKEY",
        "AWS_SECRET_ACCESS_KEY",
        "COMET_API_KEY",
        "CLIENT_SECRET",
    ],
)
def test_a_variable_with_the_name_of_a_secret_is_refused(name):
    """Others can read a run's configuration."""
    (problem,) = problems_of_env({name: "abc"})
    assert problem.startswith(f"env: {name} looks like a secret, ")
    assert "abc" not in problem


@pytest.mark.parametrize("value", ["hf_" + "a" * 30, "ghp_" + "b" * 36, "sk-" + "c" * 40, "AKIA" + "D" * 16])
def test_a_variable_with_the_value_of_a_secret_is_refused_and_not_repeated(value):
    """Its name may be anything."""
    (problem,) = problems_of_env({"A": f"x={value}"})
    assert problem.startswith("env: A looks like a secret, ")
    assert value not in problem


@pytest.mark.parametrize(
    "name",
    [f"{token}_TOKEN" for token in ["PAD", "EOS", "BOS", "MASK", "UNK", "CLS", "SEP"]]
    + ["MY_PAD_TOKEN", "PWD", "OLDPWD"],
)
def test_tokens_of_tokenizers_and_folders_are_no_secrets(name):
    """They are texts of the vocabulary, and paths."""
    assert list(problems_of_env({name: "<|end|>"})) == []


def test_a_flag_refuses_a_secret_that_is_given_twice(capsys):
    """One of the two would have no effect."""
    assert main(["tokenize", "--output", "a", "--secrets", "A=/a A=/b"]) == 2
    assert capsys.readouterr().err == "error: secrets: A is given twice; keep one of them\n"
    assert main(["tokenize", "--output", "a", "--secrets", f"{TOKEN}="]) == 2
    assert TOKEN not in capsys.readouterr().err
    for command in ("train", "join"):
        assert main([command, "--secrets", "A=/a A=/b"]) == 2
        assert capsys.readouterr().err == "error: secrets: A is given twice; keep one of them (flag)\n"
        assert main([command, "--secrets", f"{TOKEN}="]) == 2
        assert TOKEN not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--secrets", "HF_TOKEN", TOKEN],
        ["train", "--secrets=HF_TOKEN", "=", TOKEN],
        ["train", "--env", "HF_TOKEN", TOKEN],
        ["join", "--secrets", "HF_TOKEN", TOKEN],
        ["tokenize", "--output", "a", "--secrets", "HF_TOKEN", TOKEN],
        [
            "launch",
            "--nodes",
            "1",
            "--nproc-per-node",
            "1",
            "--run-dir",
            "a",
            "--",
            "--secrets",
            "HF_TOKEN",
            TOKEN,
        ],
    ],
)
def test_a_word_after_a_secret_is_not_repeated(words, capsys):
    """A value without quotes, or without =, leaves the secret as a word of its own."""
    with suppress(SystemExit):
        main(words)
    output = "".join(capsys.readouterr())
    assert TOKEN not in output
    name = words[-3].split("=")[0]
    assert f"unknown argument after {name}, not shown because it may be a secret: quote the whole value" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RANK", "env: RANK is set for each rank by the program that starts it; leave it out"),
        ("SLURM_JOB_ID", "env: SLURM_JOB_ID is set for each rank"),
        ("LD_PRELOAD", "env: LD_PRELOAD is read before a rank knows its options; export it where you start the run"),
        ("a-b", "env: 'a-b' is not a variable name"),
    ],
)
def test_a_variable_that_would_have_no_effect_is_refused(name, message, tmp_path):
    """Ranks set variables for themselves, when other programs have set or read some."""
    file = tmp_path / "run.yaml"
    file.write_text(f"env: {{{name}: 1}}\n")
    with pytest.raises(ConfigError) as error:
        sources.load_file(file)
    (problem,) = error.value.problems
    assert message in problem


def test_a_flag_has_the_same_variables_as_the_file(tmp_path, capsys):
    """Words with = are variables; a secret without a name is not repeated."""
    config = TrainConfig(env={"A": "b c", "D": "e=f"}, secrets={"HF_TOKEN": "~/token"})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert sources.load_file(tmp_path / "config.yaml") == config
    assert main(["train", "--env", "A='b c' D=e=f", "--secrets", TOKEN]) == 2
    assert capsys.readouterr().err == "error: secrets: need NAME=value words (flag)\n"
    assert main(["tokenize", "--output", "a", "--secrets", TOKEN]) == 2
    assert capsys.readouterr().err == "error: secrets: need `VARIABLE: /path/of/a/file` lines\n"


def test_hosts_of_an_elastic_run_give_their_ranks_the_variables(tiny_flags, tmp_path, monkeypatch):
    """The process that ranks are forked from has them, and none after the run."""
    monkeypatch.setattr("podwright_training.elastic.agent.Agent", _EnvironmentOfAgent)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    flags = tiny_flags(tmp_path / "run", ranks=1, global_batch_size=8, min_nodes=1, max_nodes=2)
    token = secret_file(tmp_path / "token")
    assert main(["join", *flags, "--env", "NCCL_DEBUG=INFO", "--secrets", f"HF_TOKEN={token}"]) == 0
    assert _EnvironmentOfAgent.environment.items() >= {"NCCL_DEBUG": "INFO", "HF_TOKEN": TOKEN}.items()
    assert "HF_TOKEN" not in os.environ
    assert main(["join", *flags, "--secrets", f"HF_TOKEN={tmp_path / 'missing'}"]) == 2


class _EnvironmentOfAgent:
    """Notes the environment in place of a host's agent."""

    environment: dict[str, str]

    def __init__(self, *_, **__):
        type(self).environment = dict(os.environ)

    async def run(self):
        await asyncio.sleep(0)
        return 0


def test_who_reads_another_users_run_continues_without_its_secret(tmp_path, capsys, monkeypatch):
    """Evaluating such a run warns; a variable of the caller's own stays."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert variables_of_run({"A_VARIABLE": "1"}, {"HF_TOKEN": str(tmp_path / "missing")}) == {"A_VARIABLE": "1"}
    assert capsys.readouterr().err == (
        f"warning: secrets: HF_TOKEN: {tmp_path}/missing: No such file or directory; need a file of your own with the "
        "secret; continuing without HF_TOKEN\n"
    )
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert variables_of_run({}, {"HF_TOKEN": str(secret_file(tmp_path / "token"))}) == {}


def run_with_variables(root, token):
    """Write the configuration of a run that sends a token elsewhere."""
    root.mkdir()
    (root / "config.yaml").write_text(f"env: {{HF_ENDPOINT: 'http://elsewhere'}}\nsecrets: {{HF_TOKEN: {token}}}\n")
    return root


def variables_in(*words):
    """Return the variables of a command that ends before it reads the run."""
    parser = _parser(words[:1])
    return _variables(parser.parse_args(list(map(str, words))))


CHANGES = {
    "folder of another user": (lambda run: os.chown(run, 1234, -1), "{run} belongs to uid 1234"),
    "file of another user": (lambda run: os.chown(run / "config.yaml", 1234, -1), "/config.yaml belongs to uid 1234"),
    "file that all may write": (lambda run: (run / "config.yaml").chmod(0o666), "others may write it, it has mode 666"),
    "folder of a group": (lambda run: os.chown(run, -1, 1234) or run.chmod(0o770), "others may write it, it has mode"),
    "parent that all may write": (lambda run: run.parent.chmod(0o777), "others may write it, it has mode 777"),
}


@pytest.mark.parametrize("command", ["evaluate", "generate", "consolidate", "replay"])
@pytest.mark.parametrize("change", CHANGES)
def test_variables_of_a_run_that_others_may_change_are_ignored(change, command, tmp_path, capsys, monkeypatch):
    """HF_ENDPOINT would send the caller's token elsewhere; what --secrets names counts."""
    if os.geteuid():
        pytest.skip("needs root")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    (tmp_path / "runs").mkdir()
    token = secret_file(tmp_path / "token")
    run = run_with_variables(tmp_path / "runs" / "run", token)
    words = (command, "--run-dir", run, *(("--step", "1") if command == "replay" else ()))
    assert variables_in(*words) == {"HF_ENDPOINT": "http://elsewhere", "HF_TOKEN": TOKEN}

    prepare, reason = CHANGES[change]
    prepare(run)
    assert variables_in(*words) == {}
    assert variables_in(*words, "--secrets", f"HF_TOKEN={token}") == {"HF_TOKEN": TOKEN}
    line, _ = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {run}: ")
    assert reason.format(run=run) in line
    assert line.endswith("pass the files that this command needs: --secrets 'HF_TOKEN=FILE'")


def test_a_link_of_another_user_to_a_run_is_followed_without_its_variables(tmp_path, capsys):
    """The link may lead elsewhere the next moment."""
    if os.geteuid():
        pytest.skip("needs root")
    run = run_with_variables(tmp_path / "run", secret_file(tmp_path / "token"))
    (tmp_path / "link").symlink_to(run)
    os.chown(tmp_path / "link", 1234, -1, follow_symlinks=False)
    assert variables_in("generate", "--run-dir", tmp_path / "link") == {}
    assert f"{tmp_path}/link belongs to uid 1234" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "join", "launch"])
def test_training_with_a_file_of_another_user_refuses_its_variables(command, tmp_path, capsys):
    """AWS_CONFIG_FILE may name a program, which would run as the caller."""
    if os.geteuid():
        pytest.skip("needs root")
    file = tmp_path / "run.yaml"
    file.write_text("env: {AWS_CONFIG_FILE: /fsx/home/mallory/config}\n")
    os.chown(file, 1234, -1)
    words = (
        ["launch", "--nodes=1", "--nproc-per-node=1", f"--run-dir={tmp_path / 'run'}", "--"]
        if command == "launch"
        else [command]
    )
    assert main([*words, "--config", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file} sets env, but {file} belongs to uid 1234: read it, and use a copy in a folder of your own, or "
        "give --env\n"
    )


def test_a_file_of_secrets_keeps_the_plain_variables_of_a_run(tmp_path, monkeypatch):
    """--secrets replaces the run's secrets alone."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    run = run_with_variables(tmp_path / "run", tmp_path / "missing")
    token = secret_file(tmp_path / "token")
    variables = variables_in("generate", "--run-dir", run, "--secrets", f"WANDB_API_KEY={token}")
    assert variables == {"HF_ENDPOINT": "http://elsewhere", "WANDB_API_KEY": TOKEN}


@pytest.mark.parametrize("value", ["/a:$LD_LIBRARY_PATH", "${HOME}/a"])
def test_a_value_that_only_a_shell_expands_is_refused(value, tmp_path):
    """It would be literal in run.yaml and job.yaml."""
    message = "env: A: $NAME is not expanded; write the text that it stands for"
    for name, load in (("run.yaml", sources.load_file), ("job.yaml", load_job)):
        file = tmp_path / name
        file.write_text(f"env: {{A: '{value}', B: 'a$ $(b) $1'}}\n" + ("" if name == "run.yaml" else "command: a\n"))
        with pytest.raises(ConfigError) as error:
            load(file)
        (problem,) = error.value.problems
        assert problem.endswith(message)


def test_another_trainers_job_does_not_set_path(tmp_path):
    """Without the system's folders the script itself finds no programs."""
    file = tmp_path / "job.yaml"
    file.write_text("command: a\nenv: {PATH: '/fsx/bin:$PATH'}\n")
    with pytest.raises(ConfigError) as error:
        load_job(file)
    (problem,) = error.value.problems
    assert problem.endswith(
        "env: PATH would hide the job's own programs: name the virtual environment in `environment`"
    )


# ---- jobs of other trainers ---------------------------------------------------------------------


def started(folder, *, launcher="srun", **secrets):
    """Run a job's start script, whose program prints the number of bytes of its token."""
    spec = JobSpec(command=("bash", "-c", "echo token ${#HF_TOKEN}"), launcher=launcher, secrets=secrets)
    values = {"run_dir": folder, "nodes": 1, "ranks_per_node": 1, "ranks": 1}
    script = start_script(spec, values, environment=Path(sys.prefix))
    assert TOKEN not in script
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "PATH": os.environ["PATH"]}
    return subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, env=slurm)


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n"])
def test_another_trainers_rank_reads_the_file(content, tmp_path):
    """The script that srun starts on each node exports what the file contains, without the end of the line."""
    answer = started(tmp_path, HF_TOKEN=str(secret_file(tmp_path / "to ken", content)))
    assert (answer.returncode, answer.stdout) == (0, f"token {len(TOKEN)}\n")


@pytest.mark.parametrize("name", ["HF_TOKEN", "value", "problem"])
def test_a_trace_of_the_start_script_has_no_secret(name, tmp_path):
    """A user may export SHELLOPTS=xtrace to find out why a job fails; no name is the script's own."""
    spec = JobSpec(
        command=("bash", "-c", f"echo token ${{#{name}}}"),
        launcher="srun",
        secrets={name: str(secret_file(tmp_path / "token"))},
    )
    values = {"run_dir": tmp_path, "nodes": 1, "ranks_per_node": 1, "ranks": 1}
    script = start_script(spec, values, environment=Path(sys.prefix))
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "PATH": os.environ["PATH"]}
    process = subprocess.run(
        ["bash", "-x", "-c", script], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=slurm
    )
    assert f"token {len(TOKEN)}" in process.stdout
    assert f"+ read_secret {name} " in process.stdout
    assert "+ export RANK=1" in process.stdout
    assert TOKEN not in process.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_another_trainers_job_with_a_wrong_file_ends_with_one_line(name, tmp_path):
    """A file may change between the launch and the start."""
    prepare, _ = FAULTS[name]
    prepare(tmp_path / "token")
    answer = started(tmp_path, HF_TOKEN=str(tmp_path / "token"))
    if name == "no text":
        return  # Bash passes on bytes.
    (line,) = answer.stdout.splitlines()
    assert line.startswith(f"error: secrets: HF_TOKEN: {tmp_path / 'token'}: ")
    assert answer.returncode == 2


def test_a_container_sees_the_file_and_shellcheck_finds_nothing(tmp_path):
    """The file is mounted, read-only, and no script has more than its path."""
    spec = JobSpec(command=("a",), container="image", secrets={"A": "/fsx/a b", "B": "/fsx/a b"})
    job = Job(run=RunFolder(tmp_path), nodes=2, nproc_per_node=8, environment=Path("/env"), spec=spec)
    assert shlex.quote(f"{tmp_path}:{tmp_path},/fsx/a b:/fsx/a b:ro") in render(job)
    values = {"run_dir": tmp_path, "nodes": 1, "ranks_per_node": 1, "ranks": 1}
    (tmp_path / "start.sh").write_text(start_script(spec, values, environment=Path("/env")))
    shellcheck = [Path(sys.prefix) / "bin" / "shellcheck", tmp_path / "start.sh"]
    assert subprocess.run(shellcheck, check=False, stdout=subprocess.PIPE, text=True).stdout == ""


@pytest.mark.slow
def test_jobs_of_a_curation_read_the_token_themselves(hub, text_dataset, tmp_path, monkeypatch):
    """The environment that sbatch copies lacks the token, and the jobs have the path of its file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(
        f'#!/bin/bash\nenv >> {tmp_path}/environment\ncat "$@" >> {tmp_path}/scripts\necho 7\n'
    )
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_ENDPOINT", hub)
    token = secret_file(tmp_path / "token")
    paths = os.pathsep.join(sys.path)
    words = [
        "curate", "--dataset", text_dataset, "--tokenizer", NAME, "--output", tmp_path / "curated",
        "--partition", "workers", "--secrets", f"HF_TOKEN={token}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "podwright_training", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
    assert "HF_ENDPOINT" in (tmp_path / "environment").read_text()
    assert holders(tmp_path) == [token]
    assert any(str(token).encode() in path.read_bytes() for path in tmp_path.rglob("executor.pik"))
