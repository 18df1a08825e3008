"""A rehearsed Slurm cluster on any kind of hosts: query Slurm, run commands, emulate HyperPod's auto-resume.

``namespaced.py`` and ``flat.py`` implement its methods.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from podwright_bootstrap.contract import reason_given
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_rehearsal.hosts.waiting import wait_for

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it since Python 3.11

Role = Literal["controller", "login", "compute"]
Failure = Literal["power", "processes", "network", "heartbeat"]

AUTO_RESUME_COMMENT = "auto-resume=1"  # written by auto_resume.c
# The reasons of a node on which HyperPod acts, to the letter.
REBOOT, REPLACE = "Action:Reboot", "Action:Replace"
# The reasons with which the service itself marks a node down.
FAULT, REPLACED = "hardware fault", "instance replaced"
_GRACE_S = 3.0
_POLL_S = 0.3  # each query of a job starts a login shell
_SENT_S = 10.0  # Slurm's messages to a lost node have arrived by then, or never will.
_SETTLE_S = 600.0  # Slurm has ended a dead node's part of a job by then.
_ENDED = frozenset({"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL"})
_SETTLED = _ENDED | {"RUNNING", "PENDING"}  # A job is in one of these states after COMPLETING.


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of the deployed cluster."""

    hostname: str  # ip-10-0-16-5
    private_ip: str
    instance_id: str
    instance_group: str
    instance_type: str
    role: Role
    partition: str | None = None  # None for other nodes.
    accelerators: int = 0  # Gres=gpu:N, /dev/nvidia0…
    vcpus: int = 1  # slurm.conf names the same number.
    memory_mib: int = 1024


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """The result of an auto-resume."""

    replaced: Sequence[str]  # host names
    rebooted: Sequence[str]
    detected_s: float  # Time from the call to the fault.
    resumed_s: float  # Time from the call until the job ran again.


class RehearsedCluster(ABC):
    """Controllers and compute hosts with real Slurm. A context manager: entering starts it, leaving ends all of it."""

    srun_takes_auto_resume = True  # whether `srun --auto-resume=1` is known

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.hostname: node for node in nodes}
        self.controller = next(node.hostname for node in nodes if node.role == "controller")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what depends on where hosts are --------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Start the hosts; if one does not come up, stops all and raises ``HostError``."""

    @abstractmethod
    def stop(self) -> None:
        """End everything. May be called twice."""

    @abstractmethod
    def kill(self, hostname: str, *, how: Failure) -> None:
        """Fail a host."""

    @abstractmethod
    def _login(self, hostname: str, user: str, line: str) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command and its environment that run a line on a host in a user's login shell."""

    @abstractmethod
    def _is_healthy(self, hostname: str) -> bool:
        """Return True if a host answers, as HyperPod's health monitoring checks it."""

    @abstractmethod
    def _controller_answers(self) -> bool:
        """Return True if slurmctld accepts connections: sinfo would retry for five seconds."""

    # ---- use ------------------------------------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str] | str,
        *,
        host: str = "controller",
        user: str = "ubuntu",
        check: bool = True,
        timeout_s: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host as a login of `user` would.

        Raises:
            HostError: the host is off, the command failed (unless `check` is false) or ran out of time.
        """
        hostname = self.controller if host == "controller" else host
        line = command if isinstance(command, str) else shlex.join(command)
        words, environment = self._login(hostname, user, line)
        with subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                end_group(process)
                raise HostError(f"{hostname}: `{line}` did not end within {timeout_s:g} s") from error
            except BaseException:  # Ctrl-C too: no program stays
                end_group(process)
                raise
        done = subprocess.CompletedProcess(line, process.returncode, stdout, stderr)
        if check and done.returncode:
            raise HostError(f"{hostname}: `{line}` ended with {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
        return done

    def node_states(self) -> dict[str, str]:
        """Return Slurm's state with its flags by host name: idle, allocated, down*, draining …."""
        lines = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root").stdout.splitlines()
        return dict(line.split() for line in lines)

    def wait_until_idle(self, hostnames: Sequence[str] | None = None, *, timeout_s: float = 600) -> None:
        """Return when the hosts are idle. Default: all compute nodes.

        Raises:
            HostError: they are not within `timeout_s`; the message has all nodes' states, with Slurm's reasons.
        """
        awaited = hostnames if hostnames is not None else self._compute()
        wait_for(
            lambda: all(self._states_or_none().get(name) == "idle" for name in awaited),
            timeout_s=timeout_s,
            description=lambda: f"{', '.join(awaited)} to be idle; Slurm says {self._states_shown() or 'nothing'}",
        )

    def job(self, job_id: int) -> dict[str, str]:
        """Return the fields of `scontrol show job`: JobState, Restarts, NodeList, ExitCode …."""
        text = self.run(["scontrol", "show", "job", "--oneliner", str(job_id)], user="root").stdout
        return dict(re.findall(r"(\w[\w/:]*)=(\S*)", text))

    def job_hosts(self, job_id: int) -> list[str]:
        """Return the hosts of a running job, the one of its batch script first."""
        return self.run(["scontrol", "show", "hostnames", self.job(job_id)["NodeList"]], user="root").stdout.split()

    def wait_for_job(
        self, job_id: int, states: frozenset[str] = _ENDED, *, timeout_s: float = 600, restarts: int = 0
    ) -> dict[str, str]:
        """Return the job when it is in one of the states (any final one by default) after so many restarts.

        Raises:
            HostError: it is not within `timeout_s`; the message has its state, the nodes', and Slurm's reasons.
        """

        def reached() -> bool:
            now = self.job(job_id)
            return now["JobState"] in states and int(now["Restarts"]) >= restarts

        def wait_description() -> str:
            now = self.job(job_id)
            state = f"it is {now['JobState']} ({now['Reason']}); nodes: {self._states_shown()}"
            return f"job {job_id} to be {' or '.join(sorted(states))}; {state}"

        wait_for(reached, timeout_s=timeout_s, description=wait_description, pause_s=_POLL_S)
        return self.job(job_id)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def _resume(
        self,
        job_id: int,
        *,
        replace_host: Callable[[str], None],
        reboot_host: Callable[[str], None] | None = None,
        timeout_s: float,
    ) -> Resumption:
        """Act as HyperPod's agent for `srun --auto-resume=1`, until the job runs again.

        Waits for a hardware fault (a node that no longer answers, or that an operator marked with exactly the reason
        Action:Replace or Action:Reboot), marks it down in Slurm, replaces or reboots the node and has the whole job
        requeued, as HyperPod does for jobs with GRES. Hosts that cannot reboot are replaced.

        Raises:
            HostError: the job does not want it, no node is faulty (a job's own error is not resumed), or it took too
                long.
        """
        began = time.monotonic()
        before = self.job(job_id)
        if self.srun_takes_auto_resume and before.get("Comment") != AUTO_RESUME_COMMENT:
            raise HostError(f"job {job_id} was not started with srun --auto-resume=1")
        faulty = self._wait_for_fault(job_id, timeout_s)
        detected_s = time.monotonic() - began
        rebooted = [name for name in faulty if reboot_host and self._reasons().get(name) == REBOOT]
        for hostname in faulty:
            self._mark_down(hostname, FAULT)
        for hostname in faulty:
            if reboot_host and hostname in rebooted:
                reboot_host(hostname)
            else:
                replace_host(hostname)
        # A job that Slurm has requeued already has its restart counted.
        restarts = self._requeue_unless_slurm_has(job_id, int(before["Restarts"]) + (before["JobState"] == "RUNNING"))
        left_s = max(1.0, timeout_s - (time.monotonic() - began))
        self.wait_for_job(job_id, frozenset({"RUNNING", "COMPLETED"}), restarts=restarts, timeout_s=left_s)
        replaced = tuple(name for name in faulty if name not in rebooted)
        resumed_s = time.monotonic() - began
        return Resumption(replaced=replaced, rebooted=tuple(rebooted), detected_s=detected_s, resumed_s=resumed_s)

    def _wait_for_fault(self, job_id: int, timeout_s: float) -> list[str]:
        faulty: list[str] = []

        def has_fault() -> bool:
            faulty[:] = self._faulty()
            state = "" if faulty else self.job(job_id)["JobState"]
            if state in _ENDED:
                raise HostError(f"job {job_id} is {state} and every node is healthy: its own error is not resumed")
            return bool(faulty)

        def wait_description() -> str:
            return f"a node to fail; job {job_id} is {self.job(job_id)['JobState']}"

        wait_for(has_fault, timeout_s=timeout_s, description=wait_description, pause_s=_POLL_S)
        return faulty

    def _faulty(self) -> list[str]:
        by_operator = {name for name, reason in self._reasons().items() if reason in {REBOOT, REPLACE}}
        return [name for name in self._compute() if name in by_operator or not self._is_healthy(name)]

    def _reasons(self) -> dict[str, str]:
        """Return the reason of each node's state, as an operator gave it."""
        shown = self.run(["sinfo", "--noheader", "--Node", "--format=%N|%E"], user="root").stdout
        return {name: reason for name, _, reason in (line.partition("|") for line in shown.splitlines())}

    def _requeue_unless_slurm_has(self, job_id: int, restarts: int) -> int:
        """Requeue a job unless Slurm has; return how many restarts to wait for.

        A job that failed because connections were reset needs one restart more.
        """
        now = self.wait_for_job(job_id, _SETTLED, timeout_s=_SETTLE_S)
        failed = now["JobState"] in _ENDED - {"COMPLETED"}
        if failed or (int(now["Restarts"]) < restarts and now["JobState"] == "RUNNING"):
            self.run(["scontrol", "requeue", str(job_id)], user="root")
            return int(now["Restarts"]) + 1
        return restarts

    def _name_instance(self, hostname: str, instance_id: str) -> None:
        self.nodes[hostname] = replace(self.nodes[hostname], instance_id=instance_id)

    def _mark_down(self, hostname: str, reason: str) -> None:
        """Mark a node down: if it is back before Slurm notices, Slurm takes it for the old one and its job hangs.

        Slurm then sends a kill to the lost node. A replacement that is there within seconds would get it, and with it
        the job that is queued again would end; AWS's come minutes later. So wait until nothing is on its way.
        """
        state = self._states_or_none().get(hostname, "")
        if state and not self._is_marked_down(hostname, state):
            self._update(hostname, "State=DOWN", f"Reason={reason}")
        if state:
            with contextlib.suppress(HostError):  # Messages to another lost node may be tried for long.
                wait_for(self._is_all_sent, timeout_s=_SENT_S, description=lambda: "slurmctld's messages")

    def _is_all_sent(self) -> bool:
        """Return whether slurmctld has sent all its messages."""
        shown = self.run(["sdiag"], user="root").stdout
        return not any(map(int, re.findall(r"^Agent (?:queue size|count): *(\d+)$", shown, re.MULTILINE)))

    def _lift_mark(self, hostname: str, *, slurmd_started_before: str) -> None:
        """Resume a node that an operator or ``_mark_down`` marked, when its new slurmd has registered.

        The mark outlives a registration. A node that is resumed earlier is down after it, because it has rebooted.
        """
        state = self._states_or_none().get(hostname, "")
        if self._is_marked_down(hostname, state) or state.startswith(("fail", "drain")):
            wait_for(
                lambda: self._slurmd_started(hostname) != slurmd_started_before,
                timeout_s=_SETTLE_S,
                description=lambda: (
                    f"slurmctld to hear from {hostname}; Slurm says {self._states_shown() or 'nothing'}"
                ),
            )
            self._update(hostname, "State=RESUME")

    def _is_marked_down(self, hostname: str, state: str) -> bool:
        return state.startswith("down") and reason_given(self._reasons().get(hostname, "")) in {FAULT, REPLACED}

    def _slurmd_started(self, hostname: str) -> str:
        """Return when a node's slurmd started, as slurmctld heard last; empty if it does not answer."""
        if not self._controller_answers():
            return ""
        shown = self.run(["scontrol", "show", "node", "--oneliner", hostname], user="root", check=False).stdout
        return "".join(re.findall(r"\sSlurmdStartTime=(\S+)", shown))

    def _update(self, hostname: str, *changes: str) -> None:
        self.run(["scontrol", "update", f"NodeName={hostname}", *changes], user="root")

    def _states_or_none(self) -> dict[str, str]:
        return self.node_states() if self._controller_answers() else {}

    def _states_shown(self) -> str:
        """Return states and reasons in words, empty while no controller answers."""
        states = self._states_or_none()
        reasons = {name: f" ({why})" for name, why in self._reasons().items() if why != "none"} if states else {}
        return ", ".join(f"{name} is {state}{reasons.get(name, '')}" for name, state in states.items())

    def _compute(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.role == "compute"]


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a command on a host: on SIGTERM, su ends the shell that it started in a separate session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
