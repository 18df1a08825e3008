"""The kit's commands come to their end, whatever becomes of the terminal, the pipe or the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright.cli import main
from podwright.errors import PodwrightError
from podwright.operations.deployment.folder_lock import FolderBusyError
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.state_lock import StateLockedError
from podwright.operations.errors import ArgumentError, OperationError

pytestmark = pytest.mark.terraform

LIMIT_S = 500  # of a busy machine

# A kit that says a line, waits, says many more and then writes its state, as Terraform does.
PROGRAM = """\
#!{python}
import os, signal, sys, time
stopped, end = [], time.monotonic() + {limit_s}
signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
print("begun", flush=True)
while {waits} and not stopped:
    time.sleep(0.05)
    if time.monotonic() > end:
        sys.exit("nobody stopped it")
for number in range(5000):
    print("created", number, flush=True)
open("state", "w").write("whole")
os.makedirs("cdktf.out/stacks/demo", exist_ok=True)
open("cdktf.out/manifest.json", "w").write('{{"stacks": {{"demo": {{}}}}}}')
"""
# After an interrupt it prints on and on until the test lets it end: more than a pipe without a reader holds.
SLOWLY = 'iter(lambda: time.sleep(0.0001) or os.path.exists("go"), True)'
RUN = """\
import sys
from pathlib import Path
from podwright.operations.deployment.kit import Kit
try:
    Kit(Path("cluster.yaml"), Path.cwd()).run("deploy", on_line=lambda line: print(line, flush=True))
except (KeyboardInterrupt, OSError) as error:
    sys.exit(type(error).__name__)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose kit and app are one program of this test."""
    (tmp_path / "cdktf.json").write_text(json.dumps({"app": str(tmp_path / "kit")}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podwright.operations.deployment.kit.find_program", lambda: str(tmp_path / "kit"))
    return tmp_path


def write_kit(place: Path, *, waits: bool) -> None:
    (place / "kit").write_text(PROGRAM.format(python=sys.executable, waits=waits, limit_s=LIMIT_S))
    (place / "kit").chmod(0o755)


def test_lines_that_cannot_be_passed_on_do_not_end_terraform(place: Path) -> None:
    """A pipe without a reader or a full disk is an error after the kit has written its state."""
    write_kit(place, waits=False)

    def broken(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Kit(place / "cluster.yaml", place).run("deploy", on_line=broken)
    assert (place / "state").read_text() == "whole"


def test_a_folder_is_deployed_by_one_command_at_a_time(place: Path) -> None:
    """A dry run or drift beside a deployment would write other settings where the kit reads what it deploys."""
    write_kit(place, waits=False)
    kit, other = (Kit(place / "cluster.yaml", place) for _ in range(2))
    refused = []

    def beside(_: str) -> None:
        if not refused:
            with pytest.raises(FolderBusyError, match=r"another podwright command runs in .*: `podwright deploy` of"):
                other.synthesize()
            refused.append(True)

    kit.run("deploy", on_line=beside)
    with kit.locked("deploy"):
        kit.synthesize()  # the same command
        with pytest.raises(FolderBusyError, match=r"since 20\d\d-.* UTC"):
            other.synthesize()
    other.synthesize()
    assert refused


def test_stacks_that_the_app_no_longer_has_are_removed(place: Path) -> None:
    """Output of a former name is not deployed by ``cdktf deploy '*'``; what else lies there stays."""
    write_kit(place, waits=False)
    for folder in ("former", "demo"):
        (place / "cdktf.out" / "stacks" / folder).mkdir(parents=True)
    (place / "cdktf.out" / "stacks" / "notes.txt").touch()
    Kit(place / "cluster.yaml", place).synthesize()
    assert {path.name for path in (place / "cdktf.out" / "stacks").iterdir()} == {"demo", "notes.txt"}


@pytest.mark.parametrize(
    ("project", "error", "message"),
    [
        ('{"app": "true"}', OperationError, "wrote no cdktf.out/manifest.json"),
        ('{"app": "echo my reason >&2; exit 3"}', OperationError, "exit 3` failed; its log is .*\nmy reason$"),
        ('{"language": "python"}', ArgumentError, "cdktf.json names no app"),
        ("{", ArgumentError, "cdktf.json is not JSON: "),
        ("[]", ArgumentError, "cdktf.json: got a list, need a JSON object"),
    ],
)
def test_an_app_that_does_not_synthesize_is_named(
    place: Path, project: str, error: type[PodwrightError], message: str
) -> None:
    """The message says why: a wrong ``cdktf.json``, or the last lines of its app."""
    (place / "cdktf.json").write_text(project)
    with pytest.raises(error, match=message):
        Kit(place / "cluster.yaml", place).synthesize()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_terraform_write_its_state(place: Path, number: signal.Signals) -> None:
    """Ctrl-C, the end of a CI job and a lost terminal are passed on, and waited for."""
    write_kit(place, waits=True)
    code = (
        f"import podwright.operations.deployment.kit as kit; kit.find_program = lambda: {str(place / 'kit')!r}\n{RUN}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert "stopping: Terraform finishes" in errors
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert (place / "state").read_text() == "whole"


def test_a_killed_command_ends_terraform_gently(place: Path) -> None:
    """After SIGKILL the kit is interrupted and writes its state; until then the next command says what still runs."""
    (place / "kit").write_text(
        PROGRAM.format(python=sys.executable, waits=True, limit_s=LIMIT_S).replace("range(5000)", SLOWLY)
    )
    (place / "kit").chmod(0o755)
    code = (
        f"import podwright.operations.deployment.kit as kit; kit.find_program = lambda: {str(place / 'kit')!r}\n{RUN}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    with (
        pytest.raises(FolderBusyError, match="it was killed, and Terraform finishes its changes"),
        Kit(place / "cluster.yaml", place).locked("deploy"),
    ):
        pass
    (place / "go").touch()
    wait_until_free(place)
    assert (place / "state").read_text() == "whole"


LOCKED = """\
echo 'demo-foundation  ╷'
echo '                 │ Error: Error acquiring the state lock'
echo '                 │ Lock Info:'
echo '                 │   ID:        5ad20ae8'
echo '                 │   Path:      ../../../terraform.demo-foundation.us-west-2.tfstate'
echo '                 │   Operation: OperationTypeApply'
echo '                 │   Who:       ada@laptop'
echo '                 │   Created:   2026-11-27 19:20:11.123456 +0000 UTC'
echo '                 │ You can disable locking with the -lock=false flag'
exit 1
"""


def test_a_locked_state_is_explained_without_its_advice(place: Path) -> None:
    """A second deployment says who works, and how to give a dead lock back; never to go on without a lock."""
    (place / "kit").write_text(f"#!/bin/sh\n{LOCKED}")
    (place / "kit").chmod(0o755)
    with pytest.raises(StateLockedError, match="ada@laptop since 2026-11-27 19:20:11 UTC, for apply") as locked:
        Kit(place / "cluster.yaml", place).run("deploy")
    assert "demo-foundation" in str(locked.value)
    assert "force-unlock 5ad20ae8" in locked.value.hint
    assert "-lock=false" not in locked.value.render()


COUNTER = """\
#!{python}
import os, signal, time
count = 0
def interrupt(*_):
    global count
    count += 1
    print("interrupt", flush=True)
signal.signal(signal.SIGINT, interrupt)
print("begun", flush=True)
end = time.monotonic() + 500
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.01)
open("count", "w").write(str(count))
"""


def test_terraform_is_interrupted_once(place: Path) -> None:
    """A terminal that closes sends several signals, and a cancelled CI job SIGKILL at last: it gets the first alone."""
    (place / "kit").write_text(COUNTER.format(python=sys.executable))
    (place / "kit").chmod(0o755)
    code = (
        f"import podwright.operations.deployment.kit as kit; kit.find_program = lambda: {str(place / 'kit')!r}\n{RUN}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupt\n"
        assert process.stderr.readline().startswith("stopping: Terraform finishes")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
            assert process.stderr.readline().startswith("still stopping: ")
        process.kill()
    with (
        pytest.raises(FolderBusyError, match="it was killed, and Terraform finishes its changes"),
        Kit(place / "cluster.yaml", place).locked("deploy"),
    ):
        pass
    time.sleep(0.5)  # a second interrupt would come now
    (place / "go").touch()
    wait_until_free(place)
    assert (place / "count").read_text() == "1"


def test_a_deployment_under_nohup_goes_on(place: Path) -> None:
    """A signal that the command was started to ignore does not interrupt Terraform either."""
    (place / "kit").write_text(COUNTER.format(python=sys.executable))
    (place / "kit").chmod(0o755)
    code = (
        f"import podwright.operations.deployment.kit as kit; kit.find_program = lambda: {str(place / 'kit')!r}\n{RUN}"
    )
    with subprocess.Popen(
        ["nohup", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGHUP)
        (place / "go").touch()
        assert process.wait(timeout=LIMIT_S) == 0
    assert (place / "count").read_text() == "0"


KIT_WITH_TERMINAL = """\
#!{python}
import os, pty, sys
pid, terminal = pty.fork()
if not pid:
    os.execv("./terraform", ["terraform"])
while True:
    try:
        os.write(1, os.read(terminal, 100).replace(b"\\r", b""))
    except OSError:
        break
sys.exit(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_kit_outlives_its_terraform(place: Path, number: signal.Signals) -> None:
    """Terraform runs in a terminal that goes with the kit: Terraform alone is interrupted, and ends first."""
    for name, program in (("kit", KIT_WITH_TERMINAL), ("terraform", COUNTER)):
        (place / name).write_text(program.format(python=sys.executable))
        (place / name).chmod(0o755)
    code = (
        f"import podwright.operations.deployment.kit as kit; kit.find_program = lambda: {str(place / 'kit')!r}\n"
        f"kit.find_terraform = lambda: {str(place / 'terraform')!r}\n{RUN}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        time.sleep(1)
        assert not is_free(place)
        (place / "go").touch()
    wait_until_free(place)
    assert (place / "count").read_text() == "1"


def wait_until_free(place: Path) -> None:
    """Wait until Terraform has ended, but not without end."""
    end = time.monotonic() + LIMIT_S
    while not is_free(place):
        assert time.monotonic() < end, "Terraform was not interrupted"
        time.sleep(0.05)


def is_free(place: Path) -> bool:
    """Return whether no command has the folder's lock."""
    try:
        with Kit(place / "cluster.yaml", place).locked("deploy"):
            return True
    except FolderBusyError:
        return False


def test_a_full_disk_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The system's reason is the message, and the kit has come to its end."""
    write_kit(place, waits=False)
    (place / "cluster.yaml").write_text((ROOT / "cluster.yaml").read_text())
    (place / "cdktf.out").mkdir()
    (place / "cdktf.out" / "podwright-synth.log").symlink_to("/dev/full")
    assert main(["policy", "deployer"]) == 1  # the command that asks nothing of AWS before
    assert capsys.readouterr().err == "podwright: cannot write: No space left on device\n"
    assert (place / "state").read_text() == "whole"
