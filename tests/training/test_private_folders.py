"""Folders of compiled code and of checkpoints in memory are their user's, whatever another user has prepared."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_training import code_caches
from podwright_training.__main__ import main
from podwright_training.checkpoint import manifest, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError, DamagedCheckpointError
from podwright_training.checkpoint.memory_folder import MemoryFolder
from podwright_training.code_caches import SHARED_BY_DEFAULT, TEMPORARY, private_caches
from podwright_training.errors import UserError
from podwright_training.events import StartEvent, TrainEvent
from podwright_training.memory_place import host_folder
from podwright_training.private_folder import make_private
from podwright_training.run_folder import RunFolder, alone, place_of, writable

VICTIM, ATTACKER = 61201, 61202  # of no account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users, which needs root")


def as_user(uid: int, action: Callable[[], object]) -> str:
    """Run an action in a child process of this user; return what went wrong, empty if nothing did."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
        except BaseException as error:  # noqa: BLE001 -- reported
            os.write(writer, str(error).encode() or b"failed")
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder like /tmp, where temporary files of the test go; pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="podwright-test-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        monkeypatch.setattr("tempfile.tempdir", name)
        yield folder


def prepare(kind: str, path: Path) -> None:
    """Put something of an attacker's at a path whose name was guessed."""
    match kind:
        case "folder":
            path.mkdir()
        case "closed folder":
            path.mkdir(mode=0o700)
        case "open folder":
            path.mkdir()
            path.chmod(0o777)
        case "link":
            target = path.with_name("attackers")
            target.mkdir()
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(path.with_name("missing"))
        case "file":
            path.write_text("")
        case "FIFO":
            os.mkfifo(path)


FOLDERS = ("folder", "closed folder", "open folder")
KINDS = (*FOLDERS, "link", "dangling link", "file", "FIFO")


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_user_prepared_is_refused(shared, kind):
    """A private folder is refused in one line that names it if its name is taken, and nothing is followed."""
    path = shared / "podwright"
    assert as_user(ATTACKER, lambda: prepare(kind, path)) == ""
    said = as_user(VICTIM, lambda: make_private(path))
    assert str(path) in said
    assert "\n" not in said
    assert ("is not a folder" in said) == (kind not in FOLDERS)
    assert not (shared / "missing").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_caches_are_never_where_another_user_put_something(shared, kind, capfd):
    """Whoever takes the name of a user's caches on a host gets neither their place nor the job stopped."""
    path = shared / f"podwright-{VICTIM}"
    assert as_user(ATTACKER, lambda: prepare(kind, path)) == ""

    def start() -> None:
        for place in map(Path, private_caches({}).values()):
            assert not place.is_relative_to(path)
            for folder in (place, place.parent):
                assert (folder.lstat().st_uid, folder.lstat().st_mode) == (VICTIM, 0o40700)

    assert as_user(VICTIM, start) == ""
    assert f"warning: {path}" in capfd.readouterr().err


def test_caches_are_found_again(shared):
    """The folders of a user are private, and the same at each start, so that nothing is compiled twice."""
    first = private_caches({})
    assert first == private_caches({})
    assert set(first) == {*SHARED_BY_DEFAULT, TEMPORARY}
    assert {Path(place).parent for place in first.values()} == {shared / f"podwright-{os.geteuid()}"}


@pytest.mark.slow
def test_torch_compiles_into_private_folders_alone(shared):
    """Nothing that PyTorch compiles is in a folder whose name another user could take, whatever variable it goes by."""
    code = "from podwright_training.code_caches import use_private_caches; use_private_caches(); import torch; "
    code += "torch.compile(lambda x: (x * 2 + 1).sum())(torch.ones(100))"
    free = {name: value for name, value in os.environ.items() if name not in SHARED_BY_DEFAULT}
    subprocess.run([sys.executable, "-c", code], env={**free, "TMPDIR": str(shared)}, check=True)
    (private,) = shared.iterdir()
    assert private.name == f"podwright-{os.geteuid()}"
    assert list(private.rglob("*.so"))


@pytest.mark.usefixtures("shared")
def test_a_private_folder_for_temporary_files_stays(monkeypatch):
    """A second program that the first one starts has the same folders, not others below them."""
    first = private_caches({})
    monkeypatch.setattr("tempfile.tempdir", first[TEMPORARY])
    assert private_caches(first) == {}


def test_a_cache_of_the_user_stays_unless_others_can_write_it(shared):
    """A variable that names a user's own cache, or an address, is kept; all others that are set are problems."""
    mine, open_to_all, missing = shared / "mine", shared / "open", shared / "new" / "cache"
    mine.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    kept = {
        "TORCHINDUCTOR_CACHE_DIR": str(mine),
        "TRITON_CACHE_DIR": str(missing),
        "NEURON_COMPILE_CACHE_URL": "s3://b/c",
    }
    assert not {*private_caches(kept)} & {*kept}
    assert missing.stat().st_mode & 0o777 == 0o700
    given = {"TRITON_CACHE_DIR": str(open_to_all), "TORCH_EXTENSIONS_DIR": str(shared / "theirs")}
    assert as_user(ATTACKER, lambda: (shared / "theirs").symlink_to(mine)) == ""
    with pytest.raises(UserError) as caught:
        private_caches(given)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [*given]
    assert all("code in it runs as you" in line for line in lines)


def test_a_folder_whose_parent_lacks_the_sticky_bit_is_refused(shared):
    """A private folder is refused where everybody may rename it: it could be exchanged after it was checked."""
    shared.chmod(0o777)
    assert "chmod +t" in as_user(VICTIM, lambda: make_private(shared / "podwright"))
    assert "chmod +t" in as_user(VICTIM, lambda: private_caches({}))


def test_a_process_keeps_its_caches_locked(shared):
    """systemd-tmpfiles, which takes an exclusive lock before it removes what is old, leaves used caches alone."""
    private_caches({})
    path = shared / f"podwright-{os.geteuid()}"
    locked = subprocess.run(["flock", "--exclusive", "--nonblock", path, "true"], check=False)
    assert locked.returncode == 1
    os.close(code_caches._LOCK_DESCRIPTORS.pop())


def test_a_shell_gets_the_variables(shared):
    """The module prints lines that a shell evaluates, or one error."""
    command = [sys.executable, "-I", "-m", "podwright_training.code_caches"]
    free = {name: value for name, value in os.environ.items() if name not in SHARED_BY_DEFAULT}
    done = subprocess.run(command, env={**free, "TMPDIR": str(shared)}, capture_output=True, text=True, check=True)
    assert f"export TORCHINDUCTOR_CACHE_DIR={shared}/podwright-{os.geteuid()}/inductor\n" in done.stdout
    held = f"{done.stdout}exec flock --exclusive --nonblock {shared}/podwright-{os.geteuid()} true"
    assert subprocess.run(["bash", "-c", held], check=False).returncode == 1
    shared.chmod(0o777)
    done = subprocess.run(command, env={**free, "TMPDIR": str(shared)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "chmod +t" in done.stderr


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_command_that_computes_has_private_caches(shared, mode):
    """``podwright-train`` sets the variables before it imports torch, or refuses to start."""
    shared.chmod(mode)
    name = "TORCHINDUCTOR_CACHE_DIR"
    code = "import os, podwright_training.__main__ as m, podwright_training.commands.replay as replay\n"
    code += f"replay.run = lambda args: print(os.environ.get({name!r})) or 0\n"
    code += "status = m.main(['replay', '--run-dir', '/missing', '--step', '1'])\n"
    code += f"print(status, os.environ.get({name!r}))"
    free = {name: value for name, value in os.environ.items() if name not in SHARED_BY_DEFAULT}
    environment = {**free, "TMPDIR": str(shared)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    private = f"{shared}/podwright-{os.geteuid()}/inductor"
    assert done.stdout.splitlines() == ([private, "0 None"] if mode & 0o1000 else ["2 None"])
    assert ("chmod +t" in done.stderr) == (not mode & 0o1000)


def test_checkpoints_in_memory_of_another_user_are_not_read(shared):
    """A checkpoint that somebody prepared under the run's name is not loaded, and saving says why it cannot."""
    place = host_folder(shared, run="a1b2", host="node-1")
    place = Path(str(place).replace(f"-{os.geteuid()}-", f"-{VICTIM}-"))

    def attack() -> None:
        step = place / "step-99999999"
        step.mkdir(parents=True)
        (step / "manifest.json").write_text("{}")

    assert as_user(ATTACKER, attack) == ""
    folder = MemoryFolder(shared, run="a1b2", host="node-1")
    folder.root = place

    def read() -> None:
        assert folder.parts() == []

    assert as_user(VICTIM, read) == ""
    said = as_user(VICTIM, folder.open)
    assert f"got owner uid {ATTACKER}" in said
    with pytest.raises(CheckpointError):
        folder.open()


def run_of_attacker(shared: Path, files: Path) -> RunFolder:
    """Make a run of an attacker's, open to everybody, whose report, model and samples are links to a folder."""
    folder = RunFolder(shared / "run")

    def attack() -> None:
        folder.root.mkdir()
        folder.append(StartEvent(time=1.0, step=0, world_size=1))
        folder.append(TrainEvent(time=2.0, step=1, loss=1.0, tokens=1))
        folder.report.symlink_to(files)
        folder.hf.symlink_to(files)
        folder.samples.symlink_to(files / "profile")
        folder.root.chmod(0o777)

    assert as_user(ATTACKER, attack) == ""
    return folder


@pytest.mark.parametrize("command", ["report", "generate", "consolidate", "evaluate", "claim"])
def test_no_command_writes_in_another_users_run(shared: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Links in a run that somebody else has prepared would lead to any file of who runs the command."""
    files = shared / "files"
    files.mkdir()
    (files / "profile").write_text("mine")
    folder = run_of_attacker(shared, files)
    words = {"generate": ["--prompts", "x"], "claim": ["--", "true"]}.get(command, [])
    if command == "consolidate":
        with pytest.raises(UserError, match=f"belongs to uid {ATTACKER}"), writable(folder.root):
            pass
    else:
        assert main([command, "--run-dir", str(folder.root), *words]) == 2
        assert f"{folder.root} belongs to uid {ATTACKER}" in capsys.readouterr().err
    assert [path.name for path in files.iterdir()] == ["profile"]
    assert (files / "profile").read_text() == "mine"
    assert not folder.claims.exists()


def test_a_report_of_another_users_run_goes_elsewhere(shared: Path) -> None:
    """Reading somebody's run is no harm: with --output the report is written."""
    folder = run_of_attacker(shared, shared)
    assert main(["report", "--run-dir", str(folder.root), "--output", str(shared / "report")]) == 0
    assert (shared / "report" / "index.html").is_file()


def test_links_of_other_users_lead_no_file_anywhere(shared: Path) -> None:
    """The kernel's protection of folders like /tmp does not hold for a link whose target we look up and write."""
    mine, link = shared / "mine", shared / "data"
    mine.write_text("mine")
    assert as_user(ATTACKER, lambda: link.symlink_to(mine)) == ""
    with pytest.raises(UserError, match=f"that uid {ATTACKER} made"):
        place_of(link)
    link.unlink()
    link.symlink_to(mine)
    assert place_of(link) == mine

    project = shared / "project"  # of a group: the kernel follows links there
    project.mkdir()
    project.chmod(0o777)
    assert as_user(ATTACKER, lambda: (project / "data.lock").symlink_to(mine)) == ""
    with pytest.raises(OSError, match="symbolic link"), alone(project / "data"):
        pass
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.TRAINER])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(shared: Path, name: str) -> None:
    """A checkpoint of another user, as of a run to merge with, may have a pipe for a file."""
    os.mkfifo(shared / name)
    with pytest.raises(DamagedCheckpointError, match="is a pipe"):
        (manifest.manifest_of if name == manifest.MANIFEST else trainer_state.read_state)(shared)


@pytest.mark.parametrize("command", ["tokenize", "curate"])
def test_no_command_continues_work_that_another_user_has_prepared(
    shared: Path, text_dataset: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Shards there would be taken for the dataset's, and jobs of curate would unpickle the tasks there."""
    output = shared / "tokens"
    prepared = shared / "tokens.partial"

    def attack() -> None:
        prepared.mkdir()
        prepared.chmod(0o777)

    assert as_user(ATTACKER, attack) == ""
    words = ["--dataset", str(text_dataset), "--tokenizer", str(text_dataset / "tokenizer"), "--output", str(output)]
    assert main([command, *words]) == 2
    assert f"{prepared} belongs to uid {ATTACKER}" in capsys.readouterr().err
    assert list(prepared.iterdir()) == []
