"""Decide which hosts take part in an elastic run: the leader's state machine, without sockets, clocks or processes.

A *generation* is a set of hosts that train together. It ends when one of its hosts or ranks is lost, or at a step
boundary when a host leaves or can be added; the next one begins when all ranks of the last are gone.

A property test runs it together with ``terms.py`` while hosts are lost, frozen or cut off.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from podwright_common.exit_status import DIVERGED, OK, WRONG_INPUT
from podwright_training.beats import Activity
from podwright_training.elastic.policy import Policy
from podwright_training.elastic.report import HostRankReport, HostReport
from podwright_training.elastic.state_holders import fewest_holders
from podwright_training.events import MembershipEvent

# Exit statuses of agents, beside DIVERGED; those from 69 are sysexits.h's UNAVAILABLE, OSERR and TEMPFAIL. Any other is
# that of a host that failed by itself: 1 of Python's or srun's.
FINISHED, USER_ERROR, FAILED, UNABLE, LEFT = OK, WRONG_INPUT, 69, 71, 75
FIRST_WAIT_S = 10.0  # The first generation waits this long for further nodes.
PREPARE_S = 60.0  # a host's imports, before the first generation
GATHER_S = 0.5  # after a failed rank, for the others' failures: one of them is the cause
STOP_S = 30.0  # A host whose killed ranks are not gone by then is lost.
MOST_FRUITLESS = 3  # generations in a row that failed before any new step
MOST_IN_VAIN = 10  # that failed or lost a host before any new step, for nodes_timeout_s


@dataclass(frozen=True)
class Start:
    """Start the ranks of a generation on these members, in this order."""

    generation: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """Kill a generation's ranks on these members; first let them write their stacks, if they hang."""

    generation: int
    members: tuple[str, ...]
    stacks: bool = False


@dataclass(frozen=True)
class Drain:
    """Let a generation save and end at the next step boundary."""

    generation: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Dismiss:
    """Remove a member from the run, and give it the reason."""

    member: str
    reason: str


@dataclass(frozen=True)
class End:
    """End the run on all members, with this exit status."""

    status: int
    reason: str


@dataclass(frozen=True)
class Record:
    """Let the member whose host has the first rank write a ``membership`` event: two hosts never write at once."""

    member: str
    event: MembershipEvent


Command = Start | Stop | Drain | Dismiss | End | Record


@dataclass
class Member:
    """A connected host."""

    host: str
    number: int
    heard_s: float
    report: HostReport = field(default_factory=HostReport)


@dataclass(frozen=True)
class Past:
    """Facts that a leader knows of the run before its term.

    Attributes:
        generation: Number of the last generation; 0 if there was none.
        holders: Members of the last one that loaded the state, by rank; empty if this job has not trained yet.
        leader: The member that led; it is not likely to come back.
        step: The last step that was taken.
        cause: Why the last generation ended.
        detecting_s: Seconds until that was noticed.
        host: The host that failed, if one did.
    """

    generation: int = 0
    holders: tuple[str, ...] = ()
    leader: str | None = None
    step: int | None = None
    cause: str = "start"
    detecting_s: float = 0.0
    host: str | None = None


@dataclass(frozen=True)
class Loss:
    """The loss of a member.

    Attributes:
        reason: The host, and what it did.
        silence_s: Seconds since it was heard.
        blamed: Whether its host failed: one that was asked to leave may be killed before it has saved.
    """

    reason: str
    silence_s: float
    blamed: bool = True


@dataclass
class Generation:
    """The present generation, and why and when it began and ends."""

    number: int
    members: tuple[str, ...]
    hosts: dict[str, str]
    change: dict[str, Any]  # cause and seconds of what led to it
    started_s: float
    loading_s: float | None = None
    loaded_s: float | None = None
    stepped_s: float | None = None
    step: int = 0  # the last one
    began: int = 0  # the step it resumed after
    failed_s: float | None = None
    draining: str | None = None  # why
    stopping_s: float | None = None  # since when


class Membership:
    """The members of a run and its generations.

    Args:
        policy: Allowed sizes and waits.
        leader: The member that leads; where it trains, its host has rank 0.
        now: Seconds, of a clock that only this leader uses.
        past: The run before this leader.

    Attributes:
        holders: Members of the last generation that loaded the state, by rank: it is in their memory.
    """

    def __init__(self, policy: Policy, *, leader: str, now: float, past: Past | None = None) -> None:
        past = past or Past()
        self.policy = policy
        self.members: dict[str, Member] = {}
        self.generation: Generation | None = None
        self.number = past.generation
        self.ended: End | None = None
        self._leader = leader
        self.holders = past.holders
        self._first = not past.holders
        self._idle_s = now  # since when nobody trains
        self._change: dict[str, Any] = {"cause": past.cause, "host": past.host, "detecting_s": past.detecting_s}
        self._last_step = past.step  # The last generation reached this step.
        self._highest = 0  # step ever seen
        self._fruitless = self._in_vain = 0
        self._vain_since_s = now
        self._culprit: str | None = None  # The host that made the last generation fruitless.
        self._left_out: set[str] = set()
        self._losses: dict[str, Loss] = {}
        if past.leader:
            self._losses[past.leader] = Loss(past.cause, past.detecting_s, blamed=past.host is not None)

    @property
    def step(self) -> int:
        """Return the last step taken."""
        if self.generation and self.generation.loaded_s is not None:
            return self.generation.step
        return self._last_step or 0

    @property
    def only_others_train(self) -> bool:
        """Return whether a generation runs without the leader's host, because hosts with the state took all places."""
        return self.generation is not None and self._leader not in self.generation.members

    @property
    def leader_leaves(self) -> bool:
        """Return whether the leader's host was asked to leave."""
        return self._leader in self.members and self.members[self._leader].report.leaving

    def join(self, member: str, *, host: str, number: int, now: float) -> None:
        """Add a host that has connected."""
        self.members[member] = Member(host, number, now)

    def report(self, member: str, report: HostReport, *, now: float) -> None:
        """Take a host's report."""
        if member in self.members:
            self.members[member].report = report
            self.members[member].heard_s = now

    def lose(self, member: str, reason: str, *, now: float) -> None:
        """Remove a host whose connection broke."""
        if lost_member := self.members.pop(member, None):
            leaving = lost_member.report.leaving
            reason = f"the agent on {lost_member.host} {reason}" + (", as it was asked to leave" if leaving else "")
            self._losses[member] = Loss(reason, now - lost_member.heard_s, blamed=not leaving)

    def slept(self, seconds: float) -> None:
        """Do not blame hosts for silence while the leader itself did not run."""
        for member in self.members.values():
            member.heard_s += seconds

    def decide(self, now: float) -> list[Command]:
        """Return the next action."""
        if self.ended:
            return []
        commands = list(self._silent(now))
        if self.generation is None:
            commands += self._form(now)
        elif self.generation.stopping_s is not None:
            commands += self._await_stop(self.generation, now)
        else:
            commands += self._supervise(self.generation, now)
        self.ended = next((command for command in commands if isinstance(command, End)), None)
        return commands

    def _silent(self, now: float) -> Iterator[Command]:
        for name, member in list(self.members.items()):
            if now - member.heard_s > self.policy.heartbeat_timeout_s:
                reason = f"was silent for {now - member.heard_s:.1f} s"
                self.lose(name, reason, now=now)
                yield Dismiss(name, reason)

    # Without a generation

    def _form(self, now: float) -> Iterator[Command]:
        candidates = self._free
        size, waited_s = self.policy.fitting(len(candidates)), now - self._idle_s
        if self.members and all(member.report.leaving for member in self.members.values()):
            yield End(LEFT, "every host was asked to leave")
        elif self._leader not in self.members or self.members[self._leader].report.leaving:
            return  # another host will lead
        elif self._may_get_more(size, waited_s):
            return
        elif size:
            yield self._start(candidates, size, now)
        elif waited_s >= self.policy.nodes_timeout_s:
            fewest_nodes = self.policy.sizes[0]
            yield End(
                FAILED, f"{len(candidates)} nodes for {waited_s:.0f} s (nodes_timeout_s), of at least {fewest_nodes}"
            )

    @property
    def _free(self) -> list[str]:
        """Return the members that can start ranks now, except a host on which start after start failed."""
        return [name for name in self.members.keys() - self._left_out if _is_free(self.members[name].report)]

    def _may_get_more(self, size: int, waited_s: float) -> bool:
        """Return whether to wait for more hosts than there are."""
        coming = sum(not member.report.leaving for member in self.members.values())
        if self._first and self.policy.fitting(coming) > size and waited_s < PREPARE_S:
            return True
        largest_size = self.policy.fitting(len(self.holders)) or self.policy.sizes[-1]
        if waited_s < self.policy.heartbeat_timeout_s and any(map(self._is_awaited, self.holders)):
            return True  # a spare has no part of the state
        return size < largest_size and waited_s < max(self.policy.elastic_wait_s, FIRST_WAIT_S if self._first else 0)

    def _is_awaited(self, name: str) -> bool:
        """Return whether a host that holds a part of the state may still join."""
        member = self.members.get(name)
        if member is None:
            return name not in self._losses
        return not (member.report.leaving or _is_free(member.report))

    def _start(self, candidates: list[str], size: int, now: float) -> Command:
        before = {name: place for place, name in enumerate(self.holders)}
        needed = fewest_holders(self.holders, candidates, preferred=self._leader, at_most=size)

        def place(name: str) -> tuple[Any, ...]:
            return name != self._leader, before.get(name, len(before)), self.members[name].number, name

        self.number += 1
        chosen = sorted(candidates, key=lambda name: (name not in needed, place(name)))[:size]
        members = tuple(sorted(chosen, key=place))
        change = {**self._change, "waiting_s": now - self._idle_s}
        hosts = {name: self.members[name].host for name in members}
        self.generation = Generation(self.number, members, hosts, change, started_s=now)
        self._first = False
        still_lost = set(self.holders).difference(members)
        self._losses = {name: loss for name, loss in self._losses.items() if name in still_lost}
        return Start(self.number, members)

    # With a generation

    def _supervise(self, generation: Generation, now: float) -> Iterator[Command]:
        reports = self._reports(generation)
        yield from self._note(generation, reports, now)
        ranks = [rank for report in reports for rank in report.ranks]
        are_all_reported = len(ranks) == len(generation.members) * self.policy.ranks_per_node
        if lost := [name for name in generation.members if name in self._losses]:  # it may be back already
            lost_name = next((name for name in lost if self._losses[name].blamed), lost[0])
            loss, further_hosts = self._losses[lost_name], f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            host = generation.hosts[lost_name] if loss.blamed else None
            cause = f"{loss.reason}{further_hosts}"
            yield from self._stop(generation, cause, now, host=host, detecting_s=loss.silence_s, lost=True)
        elif any(rank.failed for rank in ranks):
            yield from self._after_failure(generation, now)
        elif are_all_reported and all(rank.exit_status == 0 for rank in ranks):
            if any(rank.activity == Activity.FINISHED for rank in ranks):
                yield End(FINISHED, "finished")
            else:
                yield from self._stop(generation, generation.draining or "its ranks were asked to stop", now)
        elif any(rank.overdue for rank in ranks):
            quiet_s = max(rank.quiet_s for rank in ranks if rank.overdue)
            cause, host = describe_hang(list(self._places(generation)))
            yield from self._stop(generation, cause, now, host=host, detecting_s=quiet_s, stacks=True, failed=True)
        elif are_all_reported and generation.draining is None and (why := self._reason_to_drain(generation)):
            generation.draining = why
            yield Drain(generation.number, generation.members)

    def _reports(self, generation: Generation) -> list[HostReport]:
        """Return the reports of hosts that have started the generation's ranks."""
        reports = [self.members[name].report for name in generation.members if name in self.members]
        return [report for report in reports if report.generation == generation.number]

    def _note(self, generation: Generation, reports: list[HostReport], now: float) -> Iterator[Command]:
        """Note when the generation reaches each phase; after its first step record the duration of the change."""
        ranks = [rank for report in reports for rank in report.ranks]
        if not ranks or len(reports) < len(generation.members):
            return
        slowest = min(rank.activity for rank in ranks)
        stepped = any(rank.stepped for rank in ranks)  # All ranks of a step end it together, but reports may be late.
        generation.step = max(generation.step, *(rank.step for rank in ranks))
        if generation.loading_s is None and (slowest >= Activity.LOADING or stepped):
            generation.loading_s = now
        if generation.loaded_s is None and (slowest >= Activity.DRAWING or stepped):
            generation.loaded_s, generation.began = now, max(rank.began for rank in ranks)
            self.holders = generation.members
        if generation.stepped_s is None and stepped:
            generation.stepped_s = now
            yield self._record(generation)

    def _record(self, generation: Generation) -> Record:
        change, lost = generation.change, self._last_step
        phases = (generation.started_s, generation.loading_s, generation.loaded_s, generation.stepped_s)
        names = ("restarting_s", "loading_s", "stepping_s")
        seconds: dict[str, Any] = {
            name: None if end is None or begin is None else round(end - begin, 3)
            for name, begin, end in zip(names, phases, phases[1:], strict=False)
        }
        return Record(
            generation.members[0],
            MembershipEvent(
                step=generation.began,
                generation=generation.number,
                cause=change["cause"],
                host=change["host"],
                nodes=len(generation.members),
                ranks=len(generation.members) * self.policy.ranks_per_node,
                hosts=[generation.hosts[name] for name in generation.members],
                lost_steps=0 if lost is None or generation.loaded_s is None else max(0, lost - generation.began),
                **{name: round(value, 3) for name, value in change.items() if name.endswith("_s")},
                **seconds,
            ),
        )

    def _reason_to_drain(self, generation: Generation) -> str | None:
        needed = [self.members[name] for name in (*generation.members, self._leader) if name in self.members]
        if leaving := [member.host for member in needed if member.report.leaving]:
            return f"{leaving[0]} was asked to leave"
        joining = [self.members[name].host for name in self._free if name not in generation.members]
        if generation.stepped_s and self.policy.fitting(len(generation.members) + len(joining)) > len(
            generation.members
        ):
            return f"{', '.join(sorted(joining))} joined"
        return None

    def _after_failure(self, generation: Generation, now: float) -> Iterator[Command]:
        """Stop after a failure; first wait for more, because ranks that lost a peer fail after that peer."""
        generation.failed_s = now if generation.failed_s is None else generation.failed_s
        if now - generation.failed_s < GATHER_S:
            return
        heard_s = {generation.hosts[name]: self.members[name].heard_s for name in generation.members}
        failed = [(number, host, rank) for number, host, rank in self._places(generation) if rank.failed]
        if all(rank.exit_status in (USER_ERROR, DIVERGED) for _, _, rank in failed):
            yield End(
                max(rank.exit_status or 0 for _, _, rank in failed),
                "a rank reported an error that a new start would not change",
            )
            return
        number, host, rank = min(failed, key=lambda place: heard_s[place[1]] - place[2].ended_s)
        cause = f"rank {number} on {host} {describe_exit(rank.exit_status or 0)}"
        detecting_s = now - generation.failed_s
        yield from self._stop(generation, cause, now, host=host, detecting_s=detecting_s, failed=True)

    def _places(self, generation: Generation) -> Iterator[tuple[int, str, HostRankReport]]:
        """Yield number, host and report of each rank."""
        for place, name in enumerate(generation.members):
            if name in self.members and self.members[name].report.generation == generation.number:
                for local, rank in enumerate(self.members[name].report.ranks):
                    yield place * self.policy.ranks_per_node + local, generation.hosts[name], rank

    def _stop(
        self,
        generation: Generation,
        cause: str,
        now: float,
        *,
        host: str | None = None,
        detecting_s: float = 0.0,
        stacks: bool = False,
        failed: bool = False,
        lost: bool = False,
    ) -> Iterator[Command]:
        if generation.stepped_s is None:
            yield self._record(generation)  # it took part too, if only in vain
        if starts := self._too_many(generation, now, failed=failed, lost=lost):
            yield End(FAILED, f"{starts} starts in a row came no further, the last because {cause}")
            return
        if self._leaves_out(generation, host):
            cause += "; it is left out: starts in a row failed there"
        generation.stopping_s = now
        if generation.loaded_s is not None:  # Before that, the loss of the generation before is not counted.
            self._last_step = generation.step
        self._change = {"cause": cause, "host": host, "detecting_s": detecting_s}
        members = tuple(name for name in generation.members if name in self.members)
        yield Stop(generation.number, members, stacks=stacks)

    def _too_many(self, generation: Generation, now: float, *, failed: bool, lost: bool) -> int:
        """Count starts in a row that came no further; return their number once the run is to end, else 0."""
        came_further = generation.step > self._highest
        self._highest = max(self._highest, generation.step)
        self._fruitless = self._fruitless + 1 if failed and not came_further else 0
        if came_further:
            self._in_vain, self._vain_since_s = 0, now
        self._in_vain += (failed or lost) and not came_further
        if self._fruitless >= MOST_FRUITLESS:
            return self._fruitless
        too_long = now - self._vain_since_s >= self.policy.nodes_timeout_s
        return self._in_vain if self._in_vain >= MOST_IN_VAIN and too_long else 0

    def _leaves_out(self, generation: Generation, host: str | None) -> bool:
        """Leave a host out of the last start if the starts before failed on it, and the other hosts are enough."""
        culprit = next((name for name in generation.members if generation.hosts[name] == host), None)
        again = self._fruitless == MOST_FRUITLESS - 1 and culprit == self._culprit
        self._culprit = culprit if self._fruitless else None
        other_members = self.members.keys() - self._left_out - {culprit}
        if culprit is None or not again or not self.policy.fitting(len(other_members)):
            return False
        self._left_out.add(culprit)
        return True

    def _await_stop(self, generation: Generation, now: float) -> Iterator[Command]:
        """Wait until no rank of the generation is left."""
        since_s = generation.stopping_s or now
        alive = [name for name in generation.members if name in self.members]
        running = [name for name in alive if self.members[name].report.generation is not None]
        if running and now - since_s < STOP_S:
            return
        for name in running:
            reason = f"has ranks that SIGKILL did not end in {STOP_S:.0f} s"
            self.lose(name, reason, now=now)
            yield Dismiss(name, reason)
        self._change["stopping_s"] = now - since_s
        self.generation, self._idle_s = None, now
        yield from self._form(now)


def _is_free(report: HostReport) -> bool:
    return report.ready and report.generation is None and not report.leaving


def describe_exit(status: int) -> str:
    """Return how a process ended."""
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def describe_hang(ranks: list[tuple[int, str, HostRankReport]]) -> tuple[str, str | None]:
    """Describe the ranks that hang: stopped ones, else those that the others wait for; also return the first's host."""
    living = [(number, host, rank) for number, host, rank in ranks if rank.exit_status is None]
    positions = {(rank.step, rank.activity) for _, _, rank in living}
    if stopped := [place for place in living if place[2].stopped]:
        condition, culprits = "is stopped (SIGSTOP)", stopped
    elif len(positions) > 1:
        condition, culprits = (
            "hangs",
            [place for place in living if (place[2].step, place[2].activity) == min(positions)],
        )
    else:
        step, activity = next(iter(positions), (0, Activity.STARTING))
        return f"all ranks hang in step {step + 1}, {activity.name.lower()}: see their stacks", None
    number, host, rank = culprits[0]
    further_ranks = f", and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    return (
        f"rank {number} on {host}{further_ranks} {condition} in step {rank.step + 1}, {rank.activity.name.lower()}",
        host,
    )
