"""A node that has rebooted, as slurmctld shows it: whether it returns to service by itself."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from podwright_bootstrap import boot, contract
from podwright_bootstrap.host import process
from podwright_bootstrap.slurm import nodes, reboots

BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch):
    """Let scontrol show a line, and return the commands that were run."""

    def make(line: str) -> list[tuple[str, ...]]:
        commands: list[tuple[str, ...]] = []

        def run(*command, **_):
            commands.append(tuple(map(str, command)))
            return process.Outcome(0, f"{line}\n")

        monkeypatch.setattr(process, "run", run)
        return commands

    return make


@pytest.mark.parametrize(
    ("state", "reason", "returns"),
    [
        ("DOWN", "Node unexpectedly rebooted [slurm@1795864700]", True),
        ("DOWN", "Node unexpectedly rebooted [root@1795864700] Comment=podwright:reboot:1:xid", True),
        ("DOWN+DYNAMIC_NORM", "Node unexpectedly rebooted [slurm@1795864700]", True),
        ("DOWN", "Node unexpectedly rebooted : reboot issued [slurm@1795864700]", True),
        ("DOWN", "none [root@1795864700]", True),  # undrained before
        ("DOWN", "podwright: being set up [root@1795864700]", True),  # of its first boot
        ("DOWN", "a disk is loud : Not responding [slurm@1795864700]", True),  # a reason of before, and a silence
        ("DOWN+DRAIN", "a disk is loud : Not responding [slurm@1795864700]", False),
        ("DOWN+DRAIN", "Node unexpectedly rebooted [slurm@1795864700]", False),
        ("DOWN+DRAIN", "podwright: being set up [root@1795864700]", False),
        ("DOWN+FAIL", "Action:Reboot [root@1795864700]", False),
        ("DOWN+NOT_RESPONDING", "Node unexpectedly rebooted [slurm@1795864700]", False),
        ("DOWN+INVALID_REG", "Node unexpectedly rebooted [slurm@1795864700]", False),
        ("DOWN", "a disk is loud [root@1795864700]", False),
        ("DOWN", "a disk is loud : reboot complete [root@1795864700]", False),
        ("DOWN", "Node unexpectedly rebooted, twice [root@1795864700]", False),
        ("IDLE", "Node unexpectedly rebooted [slurm@1795864700]", False),
        ("IDLE+DRAIN", "Node unexpectedly rebooted [slurm@1795864700]", False),
    ],
)
def test_only_nodes_that_slurm_itself_put_down_return(show, state: str, reason: str, *, returns: bool) -> None:
    """A node that somebody has drained, failed or put down stays out, whatever its reason says."""
    commands = show(f"NodeName=n0 Arch=x86_64 State={state} ThreadsPerCore=1 Reason={reason}")
    assert nodes.return_after_reboot("n0") is returns
    updates = [command[2:] for command in commands if "update" in command]
    assert updates == ([("NodeName=n0", "State=RESUME", "Reason=none")] if returns else [])


@pytest.mark.parametrize(
    ("state", "slurmd_started", "responds"),
    [
        ("IDLE", str(int(BOOTED_AT) + 30), True),
        ("DOWN", str(int(BOOTED_AT) + 30), True),
        ("IDLE", str(int(BOOTED_AT) - 30), False),  # slurmctld has not noticed the reboot yet
        ("IDLE", "2026-11-28T11:18:23", True),
        ("IDLE", "None", True),
        ("DOWN*", str(int(BOOTED_AT) + 30), False),
        ("IDLE+NOT_RESPONDING", str(int(BOOTED_AT) + 30), False),
        ("UNKNOWN", "None", False),
    ],
)
def test_a_node_responds_once_slurmctld_knows_of_its_boot(
    show, state: str, slurmd_started: str, *, responds: bool
) -> None:
    """A state from before the reboot does not count."""
    show(f"NodeName=n0 State={state} BootTime=None SlurmdStartTime={slurmd_started} LastBusyTime=1")
    assert nodes.responds("n0") is responds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--after-reboot --dry-run", "argument --dry-run: not allowed with argument --after-reboot"),
        ("--follow-users --dry-run", "argument --dry-run: not allowed with argument --follow-users"),
        ("--follow-users --after-reboot", "argument --after-reboot: not allowed with argument --follow-users"),
        ("--after-reboot --skip ldap", "--follow-users and --after-reboot choose their steps: leave out --only and"),
        ("--follow-users --only users", "--follow-users and --after-reboot choose their steps: leave out --only and"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run changes no node, and no option silently gives way to another."""
    monkeypatch.setattr(boot, "_chosen_part", lambda _: pytest.fail("the boot begins"))
    with pytest.raises(SystemExit) as exit_status:
        boot.main(arguments.split())
    assert exit_status.value.code == 2
    assert message in capsys.readouterr().err


class Slurm:
    """Slurm as a rebooted node meets it: the node is down until somebody resumes or drains it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.return_to_service, self.updates = 1, []
        self.booted_at = time.time() - 90_000
        self.is_down = False
        monkeypatch.setattr(process, "run", self.run)
        monkeypatch.setattr(nodes, "booted_at", lambda: self.booted_at)
        monkeypatch.setattr(reboots, "RECORD", folder / "reboots.json")
        monkeypatch.setattr(boot, "STEPS", ())
        monkeypatch.setattr(boot, "hear_from", lambda _: None)
        monkeypatch.setattr(boot, "source", lambda: folder)
        monkeypatch.setattr(contract, "read", lambda _: "")
        monkeypatch.setattr(boot.ProvisioningParameters, "from_json", lambda _: None)
        parameters = SimpleNamespace(nodes=SimpleNamespace(remediation=None))
        monkeypatch.setattr(boot, "identify", lambda _: SimpleNamespace(hostname="n0", parameters=parameters))

    def run(self, *command: object, **_: object) -> process.Outcome:
        """Answer as scontrol does."""
        if "update" in command:
            self.updates.append(command[3:])
            self.is_down = False
        if "config" in command:
            return process.Outcome(0, f"ResvOverRun = 0 min\nReturnToService         = {self.return_to_service}\n")
        return process.Outcome(0, f"NodeName=n0 State={'DOWN' if self.is_down else 'IDLE'} Reason=none [root@1]\n")

    def go_down(self, *, rebooted_at: float | None = None) -> tuple[str, ...]:
        """Put the node down, let it look, and return what it asked of Slurm."""
        self.booted_at, self.is_down = rebooted_at or self.booted_at, True
        count = len(self.updates)
        assert boot._return_after_reboot() == 0
        return self.updates[-1] if len(self.updates) > count else ()


RETURNED = ("State=RESUME", "Reason=none")
DRAINED = ("State=DRAIN", "Reason=podwright: rebooted 3 times in 24 h")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slurm:
    """A cluster of one node, which has booted more than a day ago."""
    return Slurm(monkeypatch, tmp_path)


def test_a_node_that_reboots_again_and_again_is_drained(slurm: Slurm) -> None:
    """Three returns within 24 hours are the most; silences count no further, and after an operator it counts anew."""
    now = time.time()
    hours_ago = [now - hours * 3600 for hours in (25, 20, 15, 10, 5, 1)]
    for rebooted_at in hours_ago[:4]:  # the first of them does not count any more
        assert slurm.go_down(rebooted_at=rebooted_at) == RETURNED
        assert slurm.go_down() == RETURNED  # after a silence
    assert slurm.go_down(rebooted_at=hours_ago[4]) == DRAINED
    assert slurm.go_down(rebooted_at=hours_ago[5]) == RETURNED


@pytest.mark.parametrize("text", ["", "{", "[null]", "7", "[[1]]", "[1e999]", '["a"]', "[" * 100_000])
def test_a_damaged_record_of_reboots_counts_nothing(slurm: Slurm, text: str) -> None:
    """The node returns, and counts from then."""
    reboots.RECORD.write_text(text)
    assert slurm.go_down(rebooted_at=time.time() - 60) == RETURNED
    assert reboots.RECORD.read_text() == f"[{int(slurm.booted_at)}]\n"


def test_operators_may_keep_returns_for_themselves(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    """With ReturnToService=0 a node asks nothing of Slurm, however often it has rebooted."""
    slurm.return_to_service = 0
    for _ in range(5):
        assert slurm.go_down(rebooted_at=slurm.booted_at + 600) == ()
    assert "slurm.conf has ReturnToService=0: an operator lets jobs onto n0" in capsys.readouterr().out
