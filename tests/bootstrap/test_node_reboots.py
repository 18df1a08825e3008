"""A node that has rebooted, as slurmctld shows it: whether it returns to service by itself."""

from __future__ import annotations

import time

import pytest

from podwright_bootstrap import boot
from podwright_bootstrap.host import process
from podwright_bootstrap.slurm import nodes

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
