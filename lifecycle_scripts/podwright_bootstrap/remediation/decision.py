"""Decide which sick nodes are rebooted or replaced: pure functions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Set, Tuple

from podwright_bootstrap.contract import LOGIN_NODE_REASON, NO_REASON, REBOOT_REASON, reason_given
from podwright_bootstrap.features import Remediation
from podwright_bootstrap.slurm.listing import Occupant

REBOOT, REPLACE, DRAIN = "reboot", "replace", "drain"
SEVERITY = (REBOOT, REPLACE)  # the last is the gravest
OURS = "podwright:"  # begins a report, and the reason of a node that the prolog has drained
# The reason that Slurm gives to a node whose prolog failed or took too long, before it could say why.
PROLOG_FAILED = "Prolog error"
STALE_INTERVALS = 3
HOUR_S = 3600
RECURRENCE_S = 24 * HOUR_S  # the same fault so soon after a reboot is one that reboots do not cure
# What jobs claim: every user can write a comment, so a claim counts for little, and no number of them for more.
CLAIMED = ("run",)  # the check of a reboot that a job has claimed, whatever the claim names
CLAIMS_PER_NODE, CLAIMS_PER_USER = 1, 3  # reboots within RECURRENCE_S
# In a reservation for maintenance, such as the one that HyperPod makes for its deep health checks. Its jobs wait.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-deep-health-checks.html
IN_MAINTENANCE = "MAINTENANCE"
OUT = {"DOWN", "DRAIN", "DRAINING", "DRAINED", "ERROR", "FAIL", "FAILING", "INVAL", "NOT_RESPONDING", "UNKNOWN"}
OUT |= {IN_MAINTENANCE}


@dataclass(frozen=True)
class Report:
    """The findings of a node: their remedy, and the names of the checks."""

    action: str  # REBOOT | REPLACE
    at: int  # seconds since 1970
    checks: Tuple[str, ...]

    def to_text(self) -> str:
        """One word, as Slurm's comment of a node keeps it."""
        return f"{OURS}{self.action}:{self.at}:{','.join(self.checks)}"

    @classmethod
    def from_text(cls, text: str) -> Optional[Report]:
        """Parse the text of ``to_text``; return None for a comment of another program."""
        match = re.fullmatch(rf"{OURS}({REBOOT}|{REPLACE}):([0-9]{{1,12}}):([\w,]+)", text, flags=re.ASCII)
        return cls(match[1], int(match[2]), tuple(match[3].split(","))) if match else None


@dataclass(frozen=True)
class NodeState:
    """A node as Slurm shows it."""

    name: str
    out: bool = False  # whether it is out of service
    reason: str = ""
    report: Optional[Report] = None
    in_maintenance: bool = False


@dataclass(frozen=True)
class Claim:
    """A user's job says that a run has failed on a node again and again; who says so is Slurm's word, not the job's."""

    uid: int
    array: str  # number of the job, or of the array that it is a task of
    node: str
    at: int

    @classmethod
    def from_text(cls, uid: int, array: str, comment: str) -> Optional[Claim]:
        """Parse a job's comment of the form ``REPORT@NODE``; return None for other comments."""
        text, _, node = comment.partition("@")
        report = Report.from_text(text)
        is_claim = report and re.fullmatch(r"[A-Za-z0-9][\w.-]*", node, flags=re.ASCII)
        return cls(uid, array, node, report.at) if report and is_claim else None


@dataclass(frozen=True)
class Act:
    """A reboot, a replacement or a drain of a node."""

    node: str
    action: str  # REBOOT | REPLACE | DRAIN
    at: int
    checks: Tuple[str, ...]
    claimed_by: Optional[int] = None  # id of the user whose job claimed it; None for what the node itself reports


def parse_nodes(shown: str) -> List[NodeState]:
    """Read the lines of ``scontrol show nodes --oneliner``; login nodes, which are always drained, are not counted."""
    states = []
    for line in shown.splitlines():
        name = re.search(r"\bNodeName=(\S+)", line)
        state = re.search(r"\sState=(\S+)", line)
        if name and state:
            flags = state[1].split("+")
            reason = re.search(r"\sReason=(.*?)(?= \[\S+@|$)", line)
            text = reason[1] if reason else ""
            if not any(flag.startswith("REBOOT") for flag in flags):  # one that Slurm has ordered is in progress
                text = reason_given(text)
            comments = re.findall(r"\sComment=(\S+)", line)  # the last is Slurm's field; a reason is a text, too
            states.append(
                NodeState(
                    name[1],
                    out=state[1].endswith("*") or any(flag.rstrip("*~#!%$@^-") in OUT for flag in flags),
                    reason="" if text == NO_REASON else text,
                    report=Report.from_text(comments[-1]) if comments else None,
                    in_maintenance=IN_MAINTENANCE in flags,
                )
            )
    return [state for state in states if not state.reason.startswith(LOGIN_NODE_REASON)]


def decide(nodes: Sequence[NodeState], done: Iterable[Act], limits: Remediation, now: int) -> List[Act]:
    """Return the actions to take now, the gravest first.

    A node is left alone if somebody else has named a reason for its state or has it in maintenance, its report is old,
    or more than half of the nodes report the same, which is no fault of theirs. Acts, and nodes that are out for other
    reasons, stay within ``max_percent``; acts of an hour stay within ``max_per_hour``.
    """
    done = list(done)
    fresh = [node for node in nodes if node.report and 0 <= now - node.report.at <= _stale_s(limits)]
    common = _common(fresh, len(nodes))
    sick = [node for node in fresh if _is_free(node) and set(_checks(node)) - common]
    candidates = {node.name for node in sick}
    allowed = max(1, len(nodes) * limits.max_percent // 100)
    room = min(
        allowed - sum(node.out and node.name not in candidates for node in nodes),
        limits.max_per_hour - sum(now - act.at < HOUR_S for act in done),
    )
    acts = [_act(node, done, limits, now) for node in sick]
    acts = [act for act in acts if not (act.action == DRAIN and _state(act.node, sick).out)]
    acts.sort(key=lambda act: (act.action == REBOOT, act.node))
    return acts[: max(0, room)]


def decide_claim(
    node: NodeState,
    claims: Iterable[Claim],
    occupants: Sequence[Occupant],
    *,
    done: Iterable[Act],
    limits: Remediation,
    now: int,
) -> Optional[Act]:
    """Return the reboot of a node that a job claims, if it may have one; never a replacement.

    The claimer's own job, or its array, has to be on the node, and no job of any other user. ``done`` is root's own
    record: a node and a user have few such reboots a day, and claims together at most half of an hour's acts, rounded
    down, so that what nodes report themselves still finds room.
    """
    done = list(done)
    recent = [act for act in done if act.claimed_by is not None and now - act.at < RECURRENCE_S]
    hour = [act for act in done if now - act.at < HOUR_S]
    uids = {occupant.uid for occupant in occupants}
    arrays = {occupant.array for occupant in occupants}
    may_act = (
        len(uids) == 1
        and not node.out  # in service, also with the reason of before, which Slurm keeps
        and node.report is None
        and sum(act.node == node.name for act in recent) < CLAIMS_PER_NODE
        and sum(act.claimed_by in uids for act in recent) < CLAIMS_PER_USER
        and len(hour) < limits.max_per_hour
        and sum(act.claimed_by is not None for act in hour) < limits.max_per_hour // 2
    )
    for claim in claims if may_act else ():
        is_fresh = 0 <= now - claim.at <= _stale_s(limits)
        if is_fresh and claim.node == node.name and claim.uid in uids and claim.array in arrays:
            return Act(node.name, REBOOT, now, CLAIMED, claimed_by=claim.uid)
    return None


def has_room(nodes: Sequence[NodeState], acts: Sequence[Act], limits: Remediation) -> bool:
    """Return whether one more node may go out of service, beside those that are out and those of these acts."""
    out = {node.name for node in nodes if node.out} | {act.node for act in acts}
    return len(out) < max(1, len(nodes) * limits.max_percent // 100)


def still_counts(act: Act, now: int) -> bool:
    """Return whether an act of the past still bears on a decision."""
    return now - act.at < RECURRENCE_S


def _stale_s(limits: Remediation) -> int:
    return STALE_INTERVALS * 60 * limits.interval_minutes


def _checks(node: NodeState) -> Tuple[str, ...]:
    return node.report.checks if node.report else ()


def _common(reporting: Sequence[NodeState], total: int) -> Set[str]:
    """Return the checks that more than half of the nodes, and more than one, report: a file system, a driver."""
    counts = Counter(check for node in reporting for check in set(_checks(node)))
    return {check for check, count in counts.items() if count > max(1, total // 2)}


def _is_free(node: NodeState) -> bool:
    """Return whether neither another party, nor an action of ours in progress, has taken the node out of service.

    A node that has rebooted and fails its checks stays down with Slurm's own reason.
    """
    if node.in_maintenance:
        return False
    return not node.reason or node.reason == REBOOT_REASON or node.reason.startswith((OURS, PROLOG_FAILED))


def _act(node: NodeState, done: Iterable[Act], limits: Remediation, now: int) -> Act:
    checks, action = _checks(node), node.report.action if node.report else REBOOT
    reboots = (act for act in done if act.node == node.name and act.action == REBOOT and act.claimed_by is None)
    recent = (act for act in reboots if now - act.at < RECURRENCE_S)
    if any(set(act.checks) & set(checks) for act in recent):
        action = REPLACE
    if action == REPLACE and not limits.replace:
        action = DRAIN
    return Act(node.name, action, now, checks)


def _state(name: str, nodes: Iterable[NodeState]) -> NodeState:
    return next(node for node in nodes if node.name == name)
