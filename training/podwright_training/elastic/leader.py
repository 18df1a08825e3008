"""Lead an elastic run for one term: accept members, decide which of them train, keep the term.

Rank 0 is on the leader's host if that trains: when another leader replaces this one, the old rank 0 ends with it and
writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from podwright_training.elastic import membership
from podwright_training.elastic.channel import Channel, ChannelError, accept
from podwright_training.elastic.host_report import HostReport
from podwright_training.elastic.membership import LEFT, Dismiss, Drain, End, Membership, Record, Start, Stop
from podwright_training.elastic.terms import Term, Terms
from podwright_training.events import MembershipEvent

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two decisions, without news
FILES_S = 60.0  # in which the shared file system must answer, or another host leads
PARTING = "was asked to leave"
SLEPT_S = 1.0  # between two looks: the leader itself did not run


class Leader:
    """The server that all members connect to, the leader's own host too.

    Args:
        term: The term that this host has begun.
        terms: Where it is renewed.
        members: Who takes part.
        secret: The run's.
        options: Digest of the run's options, which all members share.
        record: Writes a ``membership`` event, where its first member cannot.
    """

    def __init__(
        self,
        term: Term,
        terms: Terms,
        *,
        members: Membership,
        secret: bytes,
        options: str,
        record: Callable[[MembershipEvent], None],
    ) -> None:
        self._term, self._terms = term, terms
        self._membership = members
        self._secret, self._options, self._record = secret, options, record
        self._timeout_s = members.policy.heartbeat_timeout_s
        self._channels: dict[str, Channel] = {}
        self._news = asyncio.Event()
        self._had_others = self._parting = False
        self._writing = asyncio.Lock()  # one renewal at a time: they write one file

    async def lead(self, server: asyncio.Server) -> None:
        """Decide until the run has ended, or another host leads.

        Raises:
            OSError: Writing the term fails.
        """
        renewing = asyncio.create_task(self._renew())
        looked_s = time.monotonic()
        try:
            while not renewing.done():
                now = time.monotonic()
                if now - looked_s > SLEPT_S:
                    self._membership.slept(now - looked_s)
                looked_s = now
                for command in self._membership.decide(now):
                    await self._carry_out(command)
                self._announce_departure()
                if self._membership.ended:
                    return
                self._news.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), LOOK_S)
        except asyncio.CancelledError:
            for channel in self._channels.values():
                channel.send(parting=PARTING)
            raise
        finally:
            renewing.cancel()
            server.close()
            for channel in list(self._channels.values()):
                channel.close()

    def _announce_departure(self) -> None:
        """Say once that this host was asked to leave: it may be killed before its ranks have saved."""
        if self._membership.leader_leaves and not self._parting:
            self._parting = True
            for channel in self._channels.values():
                channel.send(parting=PARTING)

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        channel, name = Channel(reader, writer), None
        try:
            await asyncio.wait_for(accept(channel, self._secret), self._timeout_s)
            hello = await asyncio.wait_for(channel.receive(), self._timeout_s)
            if hello["options"] != self._options:
                channel.send(refused="its options differ from those of the run that trains in this folder")
                return
            name, now = str(hello["name"]), time.monotonic()
            if before := self._channels.pop(name, None):  # its end is not noticed yet
                before.abort()
                self._membership.lose(name, "connected again", now=now)
            self._channels[name] = channel
            self._membership.join(name, host=hello["host"], number=hello["number"], now=now)
            while True:
                report = HostReport.from_dict((await channel.receive())["report"])
                self._membership.report(name, report, now=time.monotonic())
                channel.send(beat=True)
                self._news.set()
        except (ChannelError, KeyError, TypeError, ValueError, asyncio.TimeoutError) as error:
            reason = str(error) if isinstance(error, ChannelError) else "sent an invalid message"
            if name and self._channels.get(name) is channel:
                del self._channels[name]
                self._membership.lose(name, reason, now=time.monotonic())
                self._news.set()
        finally:
            channel.close()

    async def _renew(self) -> None:
        """Renew the term while someone relies on it; end when another one began."""
        while True:
            members, generation = self._membership, self._membership.generation
            relied_on = len(members.members) > 1 or generation is not None
            self._had_others = self._had_others or relied_on
            lost_all = self._had_others and not relied_on  # it may be this host that is cut off
            try:
                async with self._writing:
                    renew = self._terms.renew if relied_on or lost_all != self._term.open else self._still_newest
                    holders = members.holders or self._term.members
                    term = replace(self._term, generation=members.number, members=holders, step=members.step)
                    renewed = await _answer(renew, replace(term, open=lost_all))
                    if renewed is None:
                        logger.warning("elastic: another host leads now")
                        return
                    self._term = renewed
            except TimeoutError:
                logger.warning("elastic: the run's folder does not answer for %.0f s: another host may lead", FILES_S)
                return
            except (OSError, ValueError) as error:  # a full disk does not end a run
                logger.warning("elastic: cannot renew the term: %s", error)
            else:
                for channel in self._channels.values():
                    channel.send(renewals=renewed.renewals)
            await asyncio.sleep(self._timeout_s / 5)

    def _still_newest(self, term: Term) -> Term | None:
        newest = self._terms.newest()
        return None if newest and newest.number > term.number else term

    async def _carry_out(self, command: membership.Command) -> None:
        if isinstance(command, Record):
            if command.member in self._channels:
                self._channels[command.member].send(record=command.event.values())
            else:  # it is lost, and does not write
                self._record(command.event)
        elif isinstance(command, Dismiss):
            if channel := self._channels.pop(command.member, None):
                channel.abort()
        elif isinstance(command, Start):
            await self._start(command)
        elif isinstance(command, End):
            await self._end(command)
        else:
            values = {"stop": command.generation, "stacks": command.stacks} if isinstance(command, Stop) else {}
            values = values or {"drain": command.generation}
            self._send(command, **values)

    async def _start(self, command: Start) -> None:
        """Number the generation in the term before any rank starts, so that no later leader numbers another so."""
        async with self._writing:
            term = replace(self._term, generation=command.generation, open=False)
            renewed = await _answer(self._terms.renew, term)
            if renewed is None:
                return  # the renewing task finds the same
            self._term = renewed
        first_member = self._membership.members.get(command.members[0])
        if first_member is None:
            return
        for place, name in enumerate(command.members):
            if name in self._channels:
                self._channels[name].send(
                    start=command.generation,
                    place=place,
                    nodes=len(command.members),
                    address=first_member.host,
                    port=first_member.report.port,
                )

    async def _end(self, command: End) -> None:
        if command.status != LEFT:  # After LEFT the hosts come back and go on.
            with suppress(OSError, ValueError):
                async with self._writing:
                    await _answer(self._terms.renew, replace(self._term, ended=command.status))
        for channel in self._channels.values():
            channel.send(end=command.status, reason=command.reason)

    def _send(self, command: Stop | Drain, **message: Any) -> None:
        for name in command.members:
            if name in self._channels:
                self._channels[name].send(**message)


async def _answer(action: Callable[[Term], Term | None], term: Term) -> Term | None:
    """Return the result of a call to the shared file system; raise ``TimeoutError`` if that does not answer."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(action, term), FILES_S)
    except asyncio.TimeoutError as error:  # It is the built-in TimeoutError only from Python 3.11 on.
        raise TimeoutError(f"the run's folder does not answer for {FILES_S:.0f} s") from error
