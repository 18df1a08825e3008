"""The parts of a move that need no cluster: the new settings file, the journal, and the records on a controller."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from podwright import checkout
from podwright.aws_session import Session
from podwright.check.document import Document
from podwright.check.input_errors import InvalidSettingsError
from podwright.check.load import load
from podwright.cli import INTERRUPTED, main
from podwright.errors import ArgumentError, PodwrightError
from podwright.json_document import to_json
from podwright.operations.deployment.kit import Kit
from podwright.operations.moving import on_node
from podwright.operations.moving.backups import Carrier
from podwright.operations.moving.controller import packed
from podwright.operations.moving.destination import Destination, default_name, new_file
from podwright.operations.moving.journal import Journal, Place, alone, journal_path
from podwright.operations.moving.move import STEP_NAMES
from podwright.operations.moving.objects import CopiedObjects, bucket_of, copy
from podwright.operations.moving.settings_text import edited, key_path
from podwright.operations.moving.steps import STEPS, ClusterMove
from podwright_common.yaml_document import YamlDocument

PROGRAMS = Path(on_node.__file__).parent
MINIMAL = checkout.ROOT / "cluster.yaml"
PLAN = "arn:aws:sagemaker:us-east-1:738219305561:training-plan/next"
EXISTING = """\
name: mine
region: us-west-2
network:
  source: existing
  vpc_id: vpc-08c1f5e72a9d43b60        # the team's
  subnet_ids: [subnet-08c1f5e72a9d43b60]
  security_group_id: sg-08c1f5e72a9d43b60
lustre: {source: create}
bucket: {source: existing, name: sagemaker-team}
role: {source: create}
cluster:
  instance_groups:
    - {name: controller, role: controller, instance_type: ml.m5.xlarge, count: 1}
    - {name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 1, partition: gpu}
"""


def moved(file: Path, *, zone: str, region: str = "", plan: str = "", **values: str):
    """Return the new file of a move."""
    settings = load(file)
    given = {key_path(key.replace("__", ".")): value for key, value in values.items()}
    place = Destination(default_name(settings, zone), zone, region, plan, given)
    return new_file(Document.read(file), settings, place, file=file.with_name("new.yaml"))


def test_the_new_file_keeps_every_comment(tmp_path: Path) -> None:
    """Only name, zone, region and training plan differ, each in its line."""
    file = tmp_path / "cluster.yaml"
    file.write_text(MINIMAL.read_text().replace("ml.g5.12xlarge", "ml.p5.48xlarge"))
    new = moved(file, zone="use1-az6", region="us-east-1", plan=PLAN)
    before, after = file.read_text().splitlines(), new.text.splitlines()
    assert [line for line in before if line not in after] == [
        "name: podwright-demo                 # name of the cluster, and the prefix of every other name",
        "region: us-west-2",
        "  availability_zone_id: usw2-az1     # zone of your capacity: ask AWS or your training plan",
        "    - name: workers",
    ]
    assert [line for line in after if line not in before] == [
        "name: podwright-demo-use1-az6                 # name of the cluster, and the prefix of every other name",
        "region: us-east-1",
        "  availability_zone_id: use1-az6     # zone of your capacity: ask AWS or your training plan",
        f"    - training_plan_arn: {PLAN}",
        "      name: workers",
    ]
    groups = new.settings.cluster.instance_groups
    assert [group.training_plan_arn for group in groups] == [None, PLAN]


def test_a_second_move_replaces_the_zone_in_the_name() -> None:
    """Names do not grow with every move."""
    settings = load(MINIMAL).model_copy(update={"name": "demo-usw2-az1"})
    assert default_name(settings, "use1-az6") == "demo-use1-az6"


def test_everything_bound_to_the_old_place_is_named_at_once(tmp_path: Path) -> None:
    """A subnet is of its zone, a VPC, a security group and a bucket are of their region; new values lift the errors."""
    file = tmp_path / "cluster.yaml"
    file.write_text(EXISTING)
    with pytest.raises(InvalidSettingsError) as within:
        moved(file, zone="usw2-az2")
    assert [finding.path for finding in within.value.findings if finding.code == "bound-to-place"] == [
        ("network", "subnet_ids", 0)
    ]
    with pytest.raises(InvalidSettingsError, match=r"--set 'bucket.name=VALUE'") as between:
        moved(file, zone="use1-az6", region="us-east-1")
    assert {finding.path for finding in between.value.findings if finding.code == "bound-to-place"} == {
        ("network", "vpc_id"),
        ("network", "subnet_ids", 0),
        ("network", "security_group_id"),
        ("bucket", "name"),
    }
    given = {"network.subnet_ids[0]": "subnet-0b7d2e94c1a85f306"}
    new = moved(file, zone="usw2-az2", **given)
    assert "subnet_ids: [subnet-0b7d2e94c1a85f306]" in new.text
    assert "vpc_id: vpc-08c1f5e72a9d43b60        # the team's" in new.text


def test_a_value_that_the_file_lacks_is_added() -> None:
    """In a block before its first key, in braces too; what is no section is an error."""
    text = "lustre:\n  source: create # a\nopenzfs: {source: create}\n"
    added = edited(text, {("lustre", "backup_id"): "backup-1", ("openzfs", "backup_id"): "b 2"}, file=Path("x"))
    assert added == (
        'lustre:\n  backup_id: backup-1\n  source: create # a\nopenzfs: {backup_id: "b 2", source: create}\n'
    )
    for wrong in (("lustre",), ("key", "source"), ("lustre", "source", "x")):
        with pytest.raises(ArgumentError):
            edited(text, {wrong: "x"}, file=Path("x"))


def test_a_value_that_an_alias_repeats_is_not_edited() -> None:
    """An edit of it, or of the mapping that others merge, would change what nobody named."""
    text = "groups:\n- &gpu {name: a, plan: &plan p1}\n- {<<: *gpu, name: b}\nplan: *plan\n"
    for path in (("plan",), ("groups", 0, "plan"), ("groups", 1, "plan"), ("groups", 0, "added")):
        with pytest.raises(ArgumentError, match=r"^x:2:\d+: .+ shares this value with others, by an alias"):
            edited(text, {path: "p2"}, file=Path("x"))
    assert edited(text, {("groups", 1, "name"): "c"}, file=Path("x")) == text.replace("name: b", "name: c")


WRITTEN = {  # by how a value or section is written: the text after `b` of section `a` is 2
    "a:\n  b: >-\n    x\n    y\n\n  c: 1\n": "a:\n  b: 2\n\n  c: 1\n",
    "a:\n  b: |2+  # why\n    x\n  c: 1\n": "a:\n  b: 2  # why\n  c: 1\n",
    "a:\r\n  b: |\r\n    x\r\n  c: 1\r\n": "a:\r\n  b: 2\r\n  c: 1\r\n",
    "a:\n  b: x\n    y\n  c: 1\n": "a:\n  b: 2\n  c: 1\n",
    'a:\n  b: "x\\\n    y" # why\n  c: 1\n': "a:\n  b: 2 # why\n  c: 1\n",
    "a:\n  b: &b # why\n    1\n  c: 1\n": "a:\n  b: &b # why\n    2\n  c: 1\n",
    "a:\n  b:\n  c: 1\n": "a:\n  b: 2\n  c: 1\n",
    "a: {b: , c: 1}\n": "a: {b: 2 , c: 1}\n",
    "a:\n  b: &b\n  c: 1\n": "a:\n  b: &b 2\n  c: 1\n",
    "# \x85# \u2028a: {b: x, c: 1}\n": "# \x85# \u2028a: {b: 2, c: 1}\n",
    "a:\n  {\n    c: 1 }\n": "a:\n  {\n    b: 2, c: 1 }\n",
    "a:\n  ? c\n  : 1\n": "a:\n  b: 2\n  ? c\n  : 1\n",
    "a: {? c : 1}\n": "a: {b: 2, ? c : 1}\n",
    "- \na:\n  b: x\n": None,
    "a: {b, c: 1}\n": None,
    "a: {? b, c: 1}\n": None,
    "a:\n  b: &b x\n  c: {*b : 1}\n": None,
    "a:\n  <<: {c: 1}\n": None,
}


@pytest.mark.parametrize("text", WRITTEN)
def test_an_edit_changes_one_value_however_it_is_written(text: str) -> None:
    """Over several lines, empty, anchored, in braces: all other characters stay, or the edit is refused."""
    if (after := WRITTEN[text]) is None:
        with pytest.raises(ArgumentError):
            edited(text, {("a", "b"): "2"}, file=Path("x"))
        return
    assert edited(text, {("a", "b"): "2"}, file=Path("x")) == after
    for value in ("null", "~", "a\nb", "\u2028", "\x85\x7f", "\U0001f600", 'a"\\b', "#", "- ", ": "):
        changed = YamlDocument.parse(edited(text, {("a", "b"): value}, file=Path("x")), file=Path("x"))
        assert changed.data["a"] == {"b": value, "c": "1"}


def test_the_journal_is_whole_or_not_there(tmp_path: Path) -> None:
    """Finished steps are read again; another file is refused; two moves of one file do not run at once."""
    file = tmp_path / "cluster.yaml"
    file.write_text("name: a\n")
    path = journal_path(file)
    assert Journal.read(path) is None
    places = Place("a", "us-west-2", file), Place("b", "us-east-1", tmp_path / "b.yaml")
    journal = Journal(path, *places)
    journal.finish("hold", jobs=["1"])
    again = Journal.read(path)
    assert again is not None
    assert (again.document(), list(again.done), again.facts) == (journal.document(), ["hold"], {"jobs": ["1"]})
    with alone(file), pytest.raises(ArgumentError, match="another process"), alone(file):
        pass
    path.write_text("{}")
    with pytest.raises(PodwrightError, match="not a journal of this version"):
        Journal.read(path)


def test_without_a_move_there_is_nothing_to_go_back_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--status says so; --back and --destroy-old are wrong arguments."""
    (folder / "cluster.yaml").write_text(MINIMAL.read_text())
    assert main(["move", "--status"]) == 0
    assert capsys.readouterr().out == "no move of cluster.yaml\n"
    for option in ("--back", "--destroy-old"):
        assert main(["move", option]) == 2
        assert "no move of cluster.yaml is under way" in capsys.readouterr().err
    assert main(["move"]) == 2
    assert "no --zone" in capsys.readouterr().err


def test_what_is_not_deployed_does_not_move(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file system that is not in AWS is said before anything is written."""
    (folder / "cluster.yaml").write_text(MINIMAL.read_text())
    assert main(["move", "--zone", "usw2-az2", "--yes"]) == 2
    assert "lustre of podwright-demo is not in us-west-2" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["cluster.yaml"]


def on_controller(program: str, *arguments: object):
    """Run a program of a controller on this machine, without its lock in /run, and return its answer."""
    start = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); import {program}; {program}.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", start, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_every_lost_or_changed_file_is_found(tmp_path: Path) -> None:
    """Size, mode, time, content behind an equal time, and absence; files that are new are no difference."""
    root, record = tmp_path / "fsx", tmp_path / "fsx" / ".podwright-move"
    for name in ("same", "shorter", "mode", "touched", "content", "gone", "podwright/environment"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("text")
    (root / "link").symlink_to("same")
    found = on_controller("files", "record", record, root)
    assert (found["files"], found["hashed"]) == (9, 7)
    assert found["owners"][str(os.getuid())]["bytes"] == 7 * 4 + len("same")
    assert record.stat().st_mode & 0o777 == 0o700
    assert on_controller("files", "compare", record, root)["different"] == {}
    (root / "shorter").write_text("t")
    (root / "mode").chmod(0o600)
    os.utime(root / "touched", (1, 1))
    before = (root / "content").stat()
    (root / "content").write_text("TEXT")
    os.utime(root / "content", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "gone").unlink()
    (root / "podwright/environment").write_text("another boot")
    (root / "new").touch()
    compared = on_controller("files", "compare", record, root)
    assert compared["different"] == {"size": 1, "mode": 1, "time": 1, "missing": 1, "content": 1}
    assert compared["of_boots"] == 1
    assert f"{root}/gone: missing" in compared["examples"]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program that stops and submits jobs."""
    monkeypatch.syspath_prepend(PROGRAMS)
    return importlib.import_module("moved_jobs")


def job_of(jobs: ModuleType, **changes: str) -> dict[str, str]:
    """Return a job's fields as squeue lists them."""
    plain = dict.fromkeys(jobs.COLUMNS, "") | {"jobid": "11", "arrayjobid": "11", "arraytaskid": "N/A"}
    return {**plain, **{name.replace("_", "-"): text for name, text in changes.items()}}


@pytest.mark.parametrize(
    ("task", "number"),
    [("N/A", "11"), ("3", "11_3"), ("3-9", "11")],
)
def test_a_running_task_is_asked_alone(jobs: ModuleType, task: str, number: str) -> None:
    """An array's last task has the number of the whole array, whose other tasks it is not."""
    assert jobs.number_of(job_of(jobs, arraytaskid=task)) == number


def test_a_job_is_submitted_again_as_it_was(jobs: ModuleType) -> None:
    """Slurm's fields become sbatch's options; what the script itself names stays the script's."""
    changes = {
        "jobid": "12",
        "arraytaskid": "3-9%2",
        "name": "a b",
        "userid": "2001",
        "qos": "urgent",
        "account": "lab",
        "partition": "gpu",
        "timelimit": "UNLIMITED",
        "numnodes": "2-2",
        "numtasks": "2",
        "cpus-per-task": "4",
        "oversubscribe": "NO",
        "comment": "x UserId=root(0)",
        "dependency": "afterok:7(unfulfilled)",
        "workdir": "/fsx/my run",
        "stderr": "/fsx/e.log",
        "stdout": "/fsx/slurm-11_3.out",
        "tres-per-node": "gres/gpu:8",
        "requeue": "1",
    }
    job = job_of(jobs, **changes)
    text = "#!/bin/bash\n#SBATCH --signal=B:USR1@120\n#SBATCH --nodes=2 -e /fsx/e.log\n"
    words = list(jobs.options(job, [{"fields": job, "script": text}], {"7": "107"}))
    assert set(words) == {
        *("--job-name=a b", "--qos=urgent", "--account=lab", "--partition=gpu", "--nodes=2-2", "--ntasks=2"),
        *("--cpus-per-task=4", "--exclusive", "--comment=x UserId=root(0)", "--chdir=/fsx/my run", "--gres=gpu:8"),
        *("--array=3-9%2", "--dependency=afterok:107", "--parsable"),
    }
    asked = jobs.SIGNAL.search(text)
    assert (asked["who"], asked["signal"]) == ("B:", "USR1")


def test_a_program_of_a_move_runs_without_our_packages(tmp_path: Path) -> None:
    """A controller's Python has none of them; the reader of Slurm's list travels with the program."""
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    lock = tmp_path / "lock"  # not this machine's own
    moved_lock = f"lambda path, *more, **named: opened({str(lock)!r} if 'podwright-move' in str(path) else path, *more)"
    code = f"import os; opened = os.open; os.open = {moved_lock}\n{packed('moved_jobs')}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, "submit", tmp_path / "none"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert (done.stdout, done.returncode) == ('{"submitted": {}, "refused": []}\n', 0), done.stderr
    assert lock.stat().st_mode & 0o777 == 0o600  # who can open a lock can hold it


def test_a_job_of_nobody_or_somebody_else_is_refused(jobs: ModuleType) -> None:
    """The number that Slurm keeps says whose a job is; a name that differs here is no reason to guess."""
    assert jobs.user_of(job_of(jobs, userid="0", username="root")).pw_uid == 0
    for number, name in (("0", "ada"), ("3999999999", "ada"), ("0", "daemon"), ("3999999999", "daemon")):
        with pytest.raises(jobs.SubmissionError):
            jobs.user_of(job_of(jobs, userid=number, username=name))


def test_a_login_that_waits_or_writes_without_end_is_ended(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start files of users run before sbatch: neither a pause, nor a flood, nor a program left behind holds a move."""
    monkeypatch.setattr(jobs, "LOGIN_LIMIT_S", 0.5)
    assert jobs.answer_of(["sh", "-c", "sleep 100"], b"")[0] == -9
    assert jobs.answer_of(["sh", "-c", "yes"], b"")[0] != 0
    assert jobs.answer_of(["sh", "-c", "sleep 5 & cat"], b"\xff12") == (0, "\N{REPLACEMENT CHARACTER}12")


def test_a_record_that_others_can_write_is_refused(jobs: ModuleType, tmp_path: Path) -> None:
    """The record says as whom jobs are submitted: its folder and the one above are of whoever submits alone."""
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    for place in (tmp_path / "open", tmp_path / "open" / "mine"):
        with pytest.raises(SystemExit, match="not root's alone"):
            jobs.write(place, jobs.read(place))
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SystemExit, match="not root's alone"):
        jobs.read(tmp_path / "link")


@pytest.mark.usefixtures("folder")
def test_objects_of_users_move_and_podwrights_own_do_not(aws) -> None:
    """Keys below the cluster's name get the new name; a second run copies only what changed since."""
    s3 = aws.client("s3")
    for name in ("sagemaker-before", "sagemaker-after"):
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": aws.region})
    for key in ("one/runs/a", "one/lifecycle/x/on_create.sh", "AWSLogs/flow", "data/b"):
        s3.put_object(Bucket="sagemaker-before", Key=key, Body=key.encode())
    session = Session(region=aws.region)
    where = {"source": "sagemaker-before", "target": "sagemaker-after", "clusters": ("one", "two")}
    assert copy(session, session, **where) == CopiedObjects(copied=2, existing=0, size=16)
    listed = [item["Key"] for item in s3.list_objects_v2(Bucket="sagemaker-after")["Contents"]]
    assert listed == ["data/b", "two/runs/a"]
    s3.put_object(Bucket="sagemaker-before", Key="data/b", Body=b"changed")
    assert copy(session, session, **where) == CopiedObjects(copied=1, existing=1, size=17)
    assert s3.get_object(Bucket="sagemaker-after", Key="data/b")["Body"].read() == b"changed"


def test_help_lists_every_step() -> None:
    """The names that --until takes are those of the steps, in their order."""
    assert tuple(STEPS) == STEP_NAMES


def under_way(folder: Path) -> Journal:
    """Return the journal of a move that has begun from cluster.yaml."""
    (folder / "cluster.yaml").write_text(MINIMAL.read_text())
    (folder / "next.yaml").write_text(MINIMAL.read_text())
    ends = Place("a", "us-west-2", folder / "cluster.yaml"), Place("next", "us-west-2", folder / "next.yaml")
    journal = Journal(folder / "cluster.move.json", *ends, facts={"zone": "usw2-az2", "set": []})
    journal.write()
    return journal


@pytest.mark.parametrize("option", [[], ["--back", "--yes"], ["--destroy-old", "--yes"]])
def test_a_dry_run_of_a_move_under_way_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    """It shows the steps, whatever else is asked for."""
    journal = under_way(folder)
    assert main(["move", "--dry-run", *option]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["-", "first-backup"]
    assert journal.path.read_text() == to_json(journal.document()) + "\n"
    assert (folder / "next.yaml").exists()


def test_a_move_under_way_has_one_destination(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another region, name or value is refused, not left out."""
    under_way(folder)
    assert main(["move", "--zone", "usw2-az2", "--region", "us-east-1", "--set", "lustre.capacity_gib=2400"]) == 2
    assert "it began with another --region, --set" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--back", "--destroy-old"])
def test_a_stopped_destruction_of_a_move_names_the_move(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """After Ctrl-C nobody is sent to `podwright destroy`, which would destroy the cluster of cluster.yaml."""

    def stop(_: Kit) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Kit, "synthesize", stop)
    journal = under_way(folder)
    journal.done = dict.fromkeys(STEPS, "")
    journal.note(deploying=True)
    assert main(["move", option, "--yes"]) == INTERRUPTED
    errors = capsys.readouterr().err
    assert errors == f"podwright: stopped before its end; to go on, run `podwright move {option}` again\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_move_that_is_stopped_between_terraforms_says_how_it_continues(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Jobs may be on hold by then: no signal ends a move without a word."""

    def stop(*_: object) -> None:
        handler = signal.getsignal(number)
        assert callable(handler), "the signal would end the process at once"
        handler(number, None)

    monkeypatch.setattr(Carrier, "carry", stop)
    under_way(folder)
    assert main(["move", "--yes"]) == INTERRUPTED
    errors = capsys.readouterr().err
    assert errors == "podwright: stopped before its end; to go on, run `podwright move` again\n"


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf"])
def test_jobs_get_a_time_to_save_that_ends(folder: Path, seconds: str) -> None:
    """With NaN a job that does not save would be waited for without end, and below 0 none could save."""
    under_way(folder)
    with pytest.raises(SystemExit, match="2"):
        main(["move", f"--save-s={seconds}"])


def test_records_of_an_earlier_move_are_not_read(folder: Path) -> None:
    """The file system takes the records of each move along: job 1 here may be another one than job 1 there."""
    first, second = (ClusterMove(under_way(folder), None, folder, 1, False, print) for _ in range(2))
    assert first.shared != second.shared


def test_programs_of_a_move_share_a_lock() -> None:
    """On a controller one program of a move runs at a time."""
    names = ("accounting", "files", "moved_jobs", "people")
    locks = {importlib.import_module(f"{on_node.__name__}.{name}").LOCK for name in names}
    assert locks == {Path("/run/podwright-move.lock")}


def test_a_record_opens_regular_files_alone(tmp_path: Path) -> None:
    """Reading a pipe would never end, and a socket does not open; both are recorded by their owner and mode."""
    root, record = tmp_path / "fsx", tmp_path / "record"
    root.mkdir()
    (root / "file").write_text("text")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(root / "agent"))
    found = on_controller("files", "record", record, root)
    assert (found["files"], found["hashed"]) == (3, 1)
    (root / "pipe").unlink()
    assert on_controller("files", "compare", record, root)["different"] == {"missing": 1}


@pytest.mark.usefixtures("folder")
def test_a_bucket_that_aws_does_not_list_yet_is_not_left_out(aws) -> None:
    """Tags of a new bucket are listed late: the step fails and can be repeated."""
    with pytest.raises(PodwrightError, match="does not list the bucket of just-made"):
        bucket_of(Session(region=aws.region), "just-made")
