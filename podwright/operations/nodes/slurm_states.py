"""Slurm's state of nodes, read and changed as root on the controller through Session Manager; no ssh key is needed.

https://slurm.schedmd.com/scontrol.html#OPT_State_3
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from podwright.aws_session import Session
from podwright.errors import ArgumentError, OperationError
from podwright.operations.access import session_plugin
from podwright.operations.access.remote import SLURM_PATH, quoted, running
from podwright.operations.account import session_documents
from podwright.operations.account.hyperpod import Cluster, Node
from podwright_bootstrap.contract import NO_REASON, reason_given

# HyperPod acts on exactly these reasons, once the node's jobs have ended, and the node keeps its name.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-replace-faulty-instance.html
ACTIONS = {"replace": "Action:Replace", "reboot": "Action:Reboot"}
SEPARATOR = "|"  # in no node's name or state; a reason comes last
SINFO = quoted("sinfo", "--Node", "--noheader", f"--format=%N{SEPARATOR}%T{SEPARATOR}%E")
BEGIN, END = "podwright: begin", "podwright: status"
_OUTPUT = re.compile(rf"^{BEGIN}\n(?P<text>.*)^{END} (?P<status>\d+)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class SlurmState:
    """A node's state in Slurm's words, such as ``drained*``, and the reason for it; empty if there is none."""

    state: str
    reason: str


@dataclass(frozen=True)
class NodeShell:
    """Runs lines of shell on a node as root."""

    session: Session
    cluster: Cluster
    node: Node

    def run(self, line: str) -> str:
        """Run a line and return its standard output.

        Raises:
            OperationError: no session, or the line failed; the message has its output.
        """
        wrapped = (
            f"{SLURM_PATH}; export PATH; errors=$(mktemp); echo {quoted(BEGIN)}; ( {line} ) 2> $errors; status=$?; "
            f"[ $status = 0 ] || cat $errors; rm -f $errors; echo {quoted(END)} $status"  # a session has one stream
        )
        command = f"sudo su --login root --shell /bin/sh --command {quoted(wrapped)}"
        target = self.cluster.session_target(self.node)
        output = session_plugin.run_command(self.session, target, session_documents.COMMAND, command=command)
        match = _OUTPUT.search(output.replace("\r\n", "\n"))
        if match is None:
            message = " ".join(output.split()) or "no output"
            raise OperationError(f"{self.node.name} did not run a command: {message}")
        if match["status"] != "0":
            raise OperationError(f"{self.node.name}: {' '.join(match['text'].split()) or line}")
        return match["text"]


def controller_shell(session: Session, cluster: Cluster, nodes: Sequence[Node]) -> NodeShell:
    """Return the shell of the first running controller.

    Raises:
        OperationError: there is no controller that is Running.
    """
    controllers = [node for node in nodes if node.is_controller]
    if not controllers:
        raise OperationError(
            f"the controller of {cluster.name} is not known",
            "allow s3:GetObject on provisioning_parameters.json beside its lifecycle scripts",
        )
    up = [node for node in controllers if node.status == "Running"] or controllers
    return NodeShell(session, cluster, running(up[0]))


def states(shell: NodeShell) -> dict[str, SlurmState]:
    """Return Slurm's state of each node that it knows, by Slurm name.

    Raises:
        OperationError: the controller or Slurm does not answer.
    """
    rows = [line.split(SEPARATOR, 2) for line in shell.run(SINFO).splitlines() if line.count(SEPARATOR) > 1]
    without_reason = {reason for *_, reason in rows if reason_given(reason) == NO_REASON}
    return {name: SlurmState(state, "" if reason in without_reason else reason) for name, state, reason in rows}


def drain(shell: NodeShell, nodes: Sequence[Node], *, reason: str) -> None:
    """Let the nodes' running jobs end, and start no new ones.

    Raises:
        ArgumentError: the reason is one that HyperPod acts on, or a controller is among the nodes.
        OperationError: Slurm refuses, or the controller does not answer.
    """
    if reason.strip().lower().startswith("action:"):
        raise ArgumentError(
            f"the reason {reason!r} makes HyperPod replace or reboot the node",
            "use `podwright nodes replace --after-jobs`",
        )
    _update(shell, nodes, "drain", reason)


def resume(shell: NodeShell, nodes: Sequence[Node]) -> None:
    """Let jobs start on drained, failed or down nodes again.

    Raises:
        ArgumentError, OperationError: as ``drain``.
    """
    _update(shell, nodes, "resume", NO_REASON)


def act_after_jobs(shell: NodeShell, nodes: Sequence[Node], verb: str) -> None:
    """Let HyperPod replace or reboot the nodes when their jobs have ended.

    Raises:
        ArgumentError, OperationError: as ``drain``.
    """
    _update(shell, nodes, "fail", ACTIONS[verb])


def _update(shell: NodeShell, nodes: Sequence[Node], state: str, reason: str = "") -> None:
    controllers = [node.name for node in nodes if node.is_controller]
    if controllers:
        raise ArgumentError(f"{' and '.join(controllers)} runs slurmctld and no jobs", "name compute or login nodes")
    names = ",".join(node.name for node in nodes)
    words = ["scontrol", "update", f"nodename={names}", f"state={state}"]
    shell.run(quoted(*words, *([f"reason={reason}"] if reason else [])))
