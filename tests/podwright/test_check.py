"""``podwright check`` and ``podwright explain``, run as a user runs them.

``golden.py`` describes the cases. ``pytest tests/podwright/test_check.py --update`` rewrites what they expect.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from golden import CASES, Case, cases

from podwright import cli
from podwright.check.explain import job_keys, keys
from podwright.check.report import codes
from podwright_training.config.train_config import TrainConfig
from podwright_training.jobs.job_schema import job_schema

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "podwright"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        map(str, [ROOT, *(ROOT / part for part in ("common", "constructs", "lifecycle_scripts", "training"))])
    ),
    "PYTHONIOENCODING": "utf-8",
}
GOOD = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("*/cluster.yaml"))]

WRONG = cases()
SEVERAL = Case.read(CASES / "several" / "several_at_once.yaml")
Say = Callable[..., tuple[int, str]]
Podwright = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def podwright(tmp_path: Path) -> Podwright:
    """Run the command line in an empty directory, or in another one."""

    def run(*arguments: str | Path, cwd: Path = tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    """Return what the command line prints about a case, run within this process: there are many of them."""
    monkeypatch.chdir(tmp_path)

    def run(case: Case, *arguments: str) -> tuple[int, str]:
        status = cli.main(["check", case.write(tmp_path).name, *arguments])
        printed = capsys.readouterr()
        assert printed.err == ""
        return status, printed.out

    return run


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_reports_everything_that_is_wrong(say: Say, case: Case, update: bool):  # noqa: FBT001 — a fixture
    """Each wrong file gives its findings, with line, column and hint; the exit status is 1, or 0 for warnings alone."""
    status, printed = say(case)
    if update:
        case.update(printed)
    assert printed == Case.read(case.path).expected
    assert status == (1 if ": error: " in printed else 0)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_json_has_the_same_findings(say: Say, case: Case):
    """``--json`` gives for each finding the line, column, message and hint that the text shows."""
    status, answer = say(case, "--json")
    expected = Case.read(case.path).expected  # which --update may have written since the collection
    found = json.loads(answer)["findings"]
    assert len(found) == expected.count("cluster.yaml:") - 1  # and one line that counts them
    for finding in found:
        head = "{line}:{column}: {level}: {message} [{code}]\n".format(**finding)
        assert f"cluster.yaml:{head}" in expected
        assert not finding["hint"] or f"  hint: {finding['hint']}\n" in expected
        assert finding.keys() == {"level", "code", "problem", "path", "line", "column", "message", "hint"}
    assert status == (1 if ": error: " in expected else 0)


def test_a_wrong_file_in_a_process_of_its_own(podwright: Podwright, tmp_path: Path):
    """Run as a user runs it, a wrong file prints the same, without a traceback."""
    answer = podwright("check", SEVERAL.write(tmp_path).name)
    assert answer.stdout == SEVERAL.expected
    assert (answer.stderr, answer.returncode) == ("", 1)


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.parent.name)
def test_examples_are_clean(podwright: Podwright, file: Path):
    """The settings file of the repository and every example have not even a warning."""
    answer = podwright("check", "--strict", file)
    assert answer.stdout == f"{file}: no problems\n"
    assert answer.returncode == 0


def test_there_are_examples_and_wrong_files():
    """The tests above have something to look at."""
    names = ["bring_your_own", "minimal", "production", "slurm_by_api", "trainium"]
    assert [file.parent.name for file in GOOD[1:]] == names
    assert len(WRONG) >= 145


def test_cases_are_filed_by_code():
    """A case's folder is the code of its first finding, or ``several``."""
    for case in WRONG:
        first = re.match(r".*\[([\w-]+)\]\n", case.expected)
        assert first
        assert case.path.parent.name in {first[1], "several"}


def test_a_run_is_judged_too(podwright: Podwright, tmp_path: Path):
    """With --run a run that does not fit is an error at the instance type; a wrong option of it is said."""
    run = tmp_path / "run.yaml"
    run.write_text("preset: llama3_1_8b\n")
    done = podwright("check", ROOT / "cluster.yaml", "--run", run)
    assert done.returncode == 1
    assert "error: this run needs" in done.stdout
    assert "[run-fits]" in done.stdout
    run.write_text("presett: tiny\n")
    done = podwright("check", ROOT / "cluster.yaml", "--run", run)
    assert done.returncode == 2
    assert "did you mean preset?" in done.stderr


def test_warnings_fail_when_strict(podwright: Podwright, tmp_path: Path):
    """A region that podwright does not know is a warning: exit 0, and 1 with --strict."""
    text = GOOD[0].read_text(encoding="utf-8").replace("us-west-2", "us-west-7").replace("usw2", "usw7")
    (tmp_path / "cluster.yaml").write_text(text, encoding="utf-8")
    answer = podwright("check")
    assert "cluster.yaml:5:9: warning: region: podwright does not know us-west-7" in answer.stdout
    assert answer.returncode == 0
    assert podwright("check", "--strict").returncode == 1


def test_environment_names_the_file(podwright: Podwright, tmp_path: Path):
    """PODWRIGHT_CONFIG chooses the file, an argument goes before it."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: 'podwright-demo\n", encoding="utf-8")
    chosen = {"PODWRIGHT_CONFIG": str(wrong)}
    assert "wrong.yaml: 1 error" in podwright("check", **chosen).stdout
    assert podwright("check", GOOD[0], **chosen).returncode == 0


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: None, "No such file or directory"),  # noqa: ARG005
    "binary": (lambda file: file.write_bytes(b"name: \xff\xfe"), "is not UTF-8: byte 0xff at 6"),
    "UTF-16": (lambda file: file.write_text("name: demo", encoding="utf-16"), "is not UTF-8: it is UTF-16"),
    "folder": (Path.mkdir, "is a folder, not a regular file"),
    "link loop": (lambda file: file.symlink_to(file), "Too many levels of symbolic links"),
    "FIFO": (os.mkfifo, "is a pipe, not a regular file"),
    "/dev/zero": (lambda file: file.symlink_to("/dev/zero"), "is a device, not a regular file"),
    "5 MB": (lambda file: file.write_bytes(b"# x\n" * 1_250_000), "is too large: it has more than 1024 KiB"),
}


@pytest.mark.parametrize(("make", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], message: str
):
    """A file that is missing, not text, no file or endless is one line with exit status 2, and JSON with --json."""
    file = tmp_path / "cluster.yaml"
    make(file)
    assert cli.main(["check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("podwright: ")
    assert message in err
    assert cli.main(["check", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    (finding,) = json.loads(out)["findings"]
    assert (finding["code"], finding["line"], err) == ("unreadable-file", None, "")
    assert message in finding["message"]


def test_a_wrong_run_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With --json a wrong file of --run is a finding."""
    run = tmp_path / "run.yaml"
    run.write_text("presett: tiny\n")
    assert cli.main(["check", str(GOOD[0]), "--run", str(run), "--json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "invalid-run"


def test_explains_every_key(podwright: Podwright):
    """``explain`` shows each key with its type, default and a description, limits included."""
    answer = podwright("explain")
    for key in keys():
        assert str(key) in answer.stdout
        assert key.description, key.name
    assert "lustre.file_system_type_version  (source: create)\n    2.15 | 2.12 | 2.10; default: 2.15\n" in answer.stdout
    assert "lustre.efa  (source: create)\n    true | false; default: false\n" in answer.stdout
    assert "PERSISTENT_1 HDD 40, 12" in answer.stdout
    assert answer.returncode == 0


def test_explains_one_key(podwright: Podwright):
    """``explain KEY`` shows this key and what is below it, and takes a path as a finding prints it."""
    assert podwright("explain", "role").stdout.count("\n\n") == len(
        [key for key in keys() if key.name.startswith("role")]
    )
    one = podwright("explain", "cluster.instance_groups[1].count").stdout
    assert one.startswith("cluster.instance_groups[].count\n    whole number; required\n")
    assert one.count("\n\n") == 1
    for word in ("cluster.instance_groups[].count", "cluster.instance_groups.3.count", "count"):
        assert podwright("explain", word).stdout == one


def test_explains_the_keys_of_a_run(podwright: Podwright):
    """Each option of run.yaml is explained, by its key or flag; --run lists them all."""
    listed = podwright("explain", "--run").stdout
    assert all(f"{item.name}  (run.yaml)\n" in listed for item in fields(TrainConfig))
    one = podwright("explain", "max_steps").stdout
    assert one.startswith("max_steps  (run.yaml)\n    whole number, at least 1; default: 5000\n")
    assert podwright("explain", "--", "--max-steps").stdout == one
    assert "did you mean max_steps" in podwright("explain", "max_step").stderr


def test_explains_the_keys_of_a_job(podwright: Podwright):
    """Each key of job.yaml's schema is explained; --job lists them all, and chooses the file of a word."""
    sections = {"": job_schema(), **job_schema()["properties"]}
    names = {
        f"{section}.{key}".lstrip(".")
        for section, described in sections.items()
        for key in described.get("properties", ())
    }
    assert {key.name for key in job_keys() if not key.name.startswith("log.patterns.")} == names
    listed = podwright("explain", "--job").stdout
    assert all(f"{name}  (job.yaml)\n" in listed for name in names)
    one = podwright("explain", "resume.complete").stdout
    assert one.startswith("resume.complete  (job.yaml)\n    text; optional\n    File that a checkpoint contains")
    assert podwright("explain", "--job", "name").stdout.startswith("name  (job.yaml)\n")
    assert podwright("explain", "launcher").stdout.splitlines()[1].strip().startswith("torchrun | deepspeed")


def test_explains_codes(podwright: Podwright):
    """``explain CODE`` says what the findings of this code mean."""
    assert podwright("explain", "duplicate-key").stdout.startswith("duplicate-key\n    The same key twice")


def test_explain_lists_codes(podwright: Podwright):
    """``explain --codes`` has a line for each code."""
    listed = podwright("explain", "--codes").stdout.splitlines()
    assert len(listed) == len(codes())
    assert any(line.split()[0] == "run-fits" for line in listed)


def test_explain_prints_a_default_once(podwright: Podwright):
    """A default is beside the type; a description that says more about it has it alone."""
    assert podwright("explain", "lustre.deployment_type").stdout.count("efault: PERSISTENT_2") == 1
    assert "text; optional\n    Prefix to mount" in podwright("explain", "nodes.s3_mounts.prefix").stdout
    twice = [key.name for key in keys() if key.default.startswith("default: ") and " Default: " in key.description]
    assert twice == []


def test_explain_offers_near_names(podwright: Podwright):
    """A misspelt key is answered with the nearest ones and exit status 2."""
    answer = podwright("explain", "lustre.capacity")
    assert "did you mean lustre.capacity_gib" in answer.stderr
    assert answer.stderr.count("lustre.efa") <= 1  # a key of two variants
    assert answer.returncode == 2


def test_explain_keeps_values_whole(podwright: Podwright):
    """A value with a hyphen stays on one line, and a default list reads as one writes it."""
    assert "file-system keeps" in " ".join(podwright("explain", "nodes.lustre_client.striping").stdout.split())
    assert "list of text; default: ubuntu\n" in podwright("explain", "nodes.pam_slurm_adopt.admins").stdout


@pytest.mark.parametrize(
    ("arguments", "module"),
    [(["plan", "--model", "tiny"], "podwright_training"), (["rehearse"], "podwright_rehearsal")],
)
def test_a_missing_distribution_is_named(arguments: list[str], module: str):
    """With only some wheels installed, a command names the distribution that it lacks."""
    script = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent())
from podwright.cli import main
sys.exit(main({arguments}))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert answer.stderr.startswith(f"podwright: {module.replace('_', '-')} is not installed")
    assert answer.returncode == 1


def test_check_and_explain_need_no_trainer():
    """``check`` and ``explain`` run with only the declared dependencies of podwright's wheel."""
    script = """
import sys
sys.modules["podwright_training"] = sys.modules["podwright_rehearsal"] = None
from podwright.cli import main
for arguments in (["check", "cluster.yaml"], ["explain"], ["explain", "run-fits"], ["explain", "--codes"]):
    assert main(arguments) == 0, arguments
"""
    subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, cwd=ROOT, check=True)


def test_codes_and_keys_do_not_clash():
    """``explain`` takes a key or a code, and no name is both."""
    assert not codes().keys() & {key.name for key in keys()}


def test_interrupt_is_quiet(tmp_path: Path):
    """Ctrl-C while a file is being read ends the command with 130 and without a traceback."""
    pipe = tmp_path / "metrics.jsonl"
    os.mkfifo(pipe)
    command = [*COMMAND, "plan", "--curve", pipe, "--tokens=1B", "--seq-len=2048"]
    with (
        subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process,
        pipe.open("w"),  # opens when the command has opened its end
    ):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=500)
    assert errors == ""
    assert process.returncode == 130


def test_closed_pipe_is_quiet():
    """Output that nobody reads any more (``| head -0``) is no traceback."""
    with subprocess.Popen(
        [*COMMAND, "explain"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", ["explain", "--help", f"check {GOOD[0]}"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error(arguments: str, unbuffered: str):
    """A full disk ends each command with status 1 and one line; a closed stdout is as /dev/null."""
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    for closed, expected in (
        (">/dev/full", (1, "podwright: cannot write: No space left on device\n")),
        (">&-", (0, "")),
        ("<&- 2>&- >/dev/null", (0, "")),
    ):
        line = f"{shlex.join(COMMAND)} {arguments} {closed}"
        answer = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == expected, line


def test_terminal_without_unicode(podwright: Podwright, tmp_path: Path):
    """A source line that the terminal's encoding lacks is shown escaped, not as a traceback."""
    (tmp_path / "cluster.yaml").write_text("name: schön\n", encoding="utf-8")
    answer = podwright("check", PYTHONIOENCODING="ascii")
    assert "name: sch\\xf6n" in answer.stdout
    assert answer.stderr == ""


def test_check_loads_nothing_heavy():
    """Checking a file loads neither cdktf, boto3, torch, rich, the planner, the trainer nor a boot's programs."""
    script = "import sys, podwright.cli; podwright.cli.main(sys.argv[1:]); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script, "check", GOOD[0]], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    modules = set(loaded.stdout.split())
    assert {"pydantic", "yaml", "podwright_constructs"} <= modules
    assert not {"cdktf", "jsii", "boto3", "torch", "rich", "moto"} & modules
    assert not {"podwright.planning", "podwright_training", "podwright_rehearsal"} & modules
    bootstrap = {name for name in modules if name.startswith("podwright_bootstrap")}
    assert bootstrap == {"podwright_bootstrap", "podwright_bootstrap.features"}  # the settings of nodes
