"""One host's agent in an elastic run: it finds or becomes the leader, and starts and ends ranks when that says so.

Each node of an elastic run is a job of its own in a Slurm array, and has one agent. Agents find each other through the
run's folder (``terms.py``) and connect to the leader (``leader.py``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from podwright_training import beats, memory_place
from podwright_training.config.train_config import TrainConfig
from podwright_training.elastic import offenders
from podwright_training.elastic.channel import Channel, ChannelError, introduce
from podwright_training.elastic.host_ranks import HostRanks, memory_folder, remove_memory
from podwright_training.elastic.host_report import HostReport
from podwright_training.elastic.leader import SLEPT_S, Leader
from podwright_training.elastic.membership import FINISHED, LEFT, Membership, Past
from podwright_training.elastic.offenders import Offenders
from podwright_training.elastic.policy import Policy
from podwright_training.elastic.terms import Election, Term, Terms
from podwright_training.errors import UserError
from podwright_training.events import MembershipEvent, OffenderEvent
from podwright_training.ports import free_port, listen
from podwright_training.private_folder import make_closed
from podwright_training.ranks import host_name
from podwright_training.run_claim import OwnerKind, claim_of_run
from podwright_training.run_folder import RunFolder, write_atomically
from podwright_training.run_secret import run_secret

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks at the ranks, and at the terms
SAID_OFTEN = 5  # reports in a heartbeat's time
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
ALONE = 1  # exit status of a host that no leader accepts: it queues again three times a day


class Agent:
    """A host that takes part until the run ends or it is asked to leave.

    Args:
        config: Configuration of the run.
        policy: Allowed sizes and waits.
        number: Place among hosts that are otherwise alike; the lower, the earlier.
        address: The address at which other hosts reach this one.
        job: Slurm's number of the job array, if there is one.
        spawn: Starts the fork server. Default: as a program of its own.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        *,
        number: int,
        address: str,
        job: str | None = None,
        spawn: Callable[[socket.socket], Any] | None = None,
    ) -> None:
        self._config = config
        self._policy, self._number, self._address, self._job = policy, number, address, job
        self._name = f"{number:05}-{socket.gethostname()}-{secrets.token_hex(4)}"
        self._digest = f"{config.digest}-{policy.ranks_per_node}"
        self._folder = RunFolder(Path(config.run_dir))
        self._claim_of_run = claim_of_run(self._folder, OwnerKind.ELASTIC)  # Only the host that leads enters it.
        self._claim_of_run.check()
        make_closed(self._folder.elastic)
        self._secret = run_secret(self._folder)
        self._terms = Terms(self._folder.elastic / "terms")
        self._election = Election(policy.heartbeat_timeout_s)
        self._memory = memory_folder(self._folder.root, number)
        config_path = self._memory / "run.yaml"
        write_atomically(config_path, config.to_yaml())
        argv = ["train", "--config", str(config_path)]
        self._ranks = HostRanks(config, argv, count=policy.ranks_per_node, folder=self._memory, spawn=spawn)
        self._followed: Term | None = None  # the last one
        self._heard_s = 0.0  # its leader's last message
        self._parting = ""  # why its leader leads no more, if that has said so
        self._leading: asyncio.Task[None] | None = None
        self._membership: Membership | None = None
        self._has_first_rank = False
        self._leaving = False
        self._reached_s = time.monotonic()  # when this host last was a member
        self._obstacle = ""  # that keeps it from being one, if that is known
        self._offenders = Offenders(self._folder.elastic / "failures.json")
        self._reporting: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Take part in the run; return the exit status: 0 if the run is complete, 75 if it continues without this host.

        Raises:
            UserError: The run in this folder has other options.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._leave)
        signal.signal(
            signal.SIGUSR2, signal.SIG_IGN
        )  # `scancel --signal=USR2` is for the ranks, which write their stacks.
        taking_part = asyncio.create_task(self._take_part_until_end())
        tasks = {taking_part, asyncio.create_task(self._ranks.serve()), asyncio.create_task(self._beat())}
        status = None
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {taking_part}:
                task.result()  # its error: without it ranks are neither heard nor kept alive
            status = taking_part.result()
            if self._leading:
                if status == LEFT:
                    self._leading.cancel()
                await asyncio.wait({self._leading}, timeout=LOOK_S)
        finally:
            for task in tasks:
                task.cancel()
            self._ranks.close()
            if status != LEFT:
                remove_memory(self._memory)
                if self._leading and status is not None:
                    self._claim_of_run.release()
            if status == FINISHED:  # the last generation's ranks have; this host may not have been one of theirs
                self._give_checkpoints_back()
        return status

    def _give_checkpoints_back(self) -> None:
        config = self._config
        with suppress(OSError):  # The run is complete even if its folder is gone.
            run = (config.checkpoints / memory_place.RUN_ID).read_text().strip()
            folder = memory_place.host_folder(Path(config.memory_checkpoint_dir), run=run, host=host_name())
            memory_place.give_back(folder)

    async def _take_part_until_end(self) -> int:
        while True:
            try:
                if (status := await self._take_part()) is not None:
                    return status
            except UserError:
                raise
            except (OSError, ValueError) as error:  # The shared file system may come back.
                self._note_obstacle(f"the run's folder: {error}")
                await asyncio.sleep(self._policy.heartbeat_timeout_s / SAID_OFTEN)
            alone_s = time.monotonic() - self._reached_s
            if (
                alone_s > self._policy.nodes_timeout_s + 2 * self._policy.heartbeat_timeout_s
            ):  # An election takes up to two such timeouts.
                logger.error("elastic: no leader reached in %.0f s (nodes_timeout_s); %s", alone_s, self._obstacle)
                return ALONE

    def _note_obstacle(self, obstacle: str) -> None:
        """Log the reason why this host cannot take part, once."""
        if obstacle != self._obstacle:
            logger.warning("elastic: %s", obstacle)
        self._obstacle = obstacle

    async def _take_part(self) -> int | None:
        """Look for the leader and follow it, or become it; return the exit status once there is one."""
        if (term := await self._newest()) and term.ended is None:
            if (status := await self._follow(term)) is not None:
                return status
            term = await self._newest()
        if term and term.ended is not None and term.job == self._job is not None:
            return term.ended
        if self._leaving:
            return LEFT
        if not self._leads and self._election.may_claim(time.monotonic()):
            await self._claim(term)
        else:
            await asyncio.sleep(LOOK_S)
        return None

    async def _newest(self) -> Term | None:
        """Return the newest term; a term in which the run ended has no leader."""
        term = await asyncio.to_thread(self._terms.newest)
        self._election.look(term, time.monotonic())
        if term and term.ended is not None:
            self._election.refuse(term.number)
        return term

    async def _claim(self, newest_term: Term | None) -> None:
        """Begin the next term, unless another host is faster."""
        leader: list[Leader] = []

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # this host ends: asyncio would print the error of each connection
                await leader[0].welcome(reader, writer)

        server = await asyncio.start_server(welcome, sock=listen())
        term = Term(
            number=newest_term.number + 1 if newest_term else 1,
            leader=self._name,
            address=self._address,
            port=server.sockets[0].getsockname()[1],
            job=self._job,
            generation=newest_term.generation if newest_term else 0,
            members=newest_term.members if newest_term else (),
        )
        members = Membership(self._policy, leader=self._name, now=time.monotonic(), past=self._past(newest_term))
        leader.append(
            Leader(term, self._terms, members=members, secret=self._secret, options=self._digest, record=self._record)
        )
        claimed = False
        try:
            if claimed := await asyncio.to_thread(self._terms.claim, term):
                await asyncio.to_thread(self._claim_of_run.__enter__)
        finally:
            if not claimed:
                server.close()
        if claimed:
            logger.warning("elastic: this host leads, term %d", term.number)
            self._membership = members
            self._leading = asyncio.create_task(_lead(leader[0], server))

    def _past(self, newest_term: Term | None) -> Past:
        """Return what is known of the run before this host leads."""
        if newest_term is None or self._followed is None:
            return Past(generation=newest_term.generation if newest_term else 0)
        parting = self._parting if self._followed.number == newest_term.number else ""
        return Past(
            generation=newest_term.generation,
            holders=newest_term.members,
            leader=newest_term.leader,
            step=newest_term.step,
            cause=f"the agent on {newest_term.address}, which led, {parting or 'was lost'}",
            detecting_s=0.0 if parting else time.monotonic() - self._heard_s,
            host=None if parting else newest_term.address,
        )

    async def _follow(self, term: Term) -> int | None:
        """Be a member while the leader of a term exists; return the exit status if the run or this host ends."""
        timeout_s = self._policy.heartbeat_timeout_s
        try:
            streams = await asyncio.wait_for(asyncio.open_connection(term.address, term.port), timeout_s / SAID_OFTEN)
        except ConnectionRefusedError:
            self._election.refuse(term.number)
            return None
        except (OSError, asyncio.TimeoutError) as error:
            self._note_obstacle(f"leader at {term.address}: {str(error) or 'no answer'}")
            return None
        channel = Channel(*streams)
        watching = asyncio.create_task(self._watch_term(channel, term))
        try:
            await asyncio.wait_for(introduce(channel, self._secret), timeout_s / SAID_OFTEN)  # a hung host accepts
            channel.send(
                name=self._name,
                host=self._address,
                number=self._number,
                options=self._digest,
            )
            self._followed, self._heard_s, self._parting = term, time.monotonic(), ""
            return await self._obey(channel, term)
        except (ChannelError, asyncio.TimeoutError) as error:
            self._note_obstacle(f"leader at {term.address} {str(error) or 'does not answer'}")
            return None
        finally:
            if self._followed is term:
                self._reached_s = time.monotonic()
            watching.cancel()
            channel.close()
            self._ranks.stop()

    async def _watch_term(self, channel: Channel, term: Term) -> None:
        """Read the term's renewals while the leader is silent: their age must be known when it counts as lost.

        Where the first rank, which writes, is not on the leader's host, always: a leader that does not know yet that
        it was replaced may not let it write.
        """
        often_s = self._policy.heartbeat_timeout_s / SAID_OFTEN
        while True:
            await asyncio.sleep(often_s)
            if self._has_first_rank or time.monotonic() - self._heard_s > 2 * often_s:
                with suppress(OSError, ValueError):
                    newest = await self._newest()
                    if newest and newest.number > term.number:
                        channel.abort()

    async def _obey(self, channel: Channel, term: Term) -> int | None:
        """Report to the leader and follow its orders until the run ends, or this host leaves it."""
        timeout_s = self._policy.heartbeat_timeout_s
        sent_s, sent, looked_s = 0.0, None, time.monotonic()
        receiving = asyncio.ensure_future(channel.receive())
        try:
            while True:
                await asyncio.wait({receiving}, timeout=LOOK_S)
                now = time.monotonic()
                self._heard_s += now - looked_s if now - looked_s > SLEPT_S else 0.0
                looked_s = now
                if receiving.done():
                    message = receiving.result()
                    if (
                        "renewals" in message
                    ):  # Members learn the term from here, so that they need not all read its file.
                        self._election.look(replace(term, renewals=message["renewals"]), now)
                    if (status := self._carry_out(message)) is not None:
                        return status
                    self._heard_s, receiving = now, asyncio.ensure_future(channel.receive())
                if now - self._heard_s > timeout_s:
                    raise ChannelError(f"was silent for {now - self._heard_s:.1f} s")
                report = self._report()
                if report.urgent != sent or now - sent_s > timeout_s / SAID_OFTEN:
                    channel.send(report=report.to_dict())
                    sent, sent_s = report.urgent, now
                if self._leaving and self._ranks.generation is None and not self._lets_others_train:
                    return LEFT
        finally:
            receiving.cancel()

    @property
    def _leads(self) -> bool:
        return self._leading is not None and not self._leading.done()

    @property
    def _lets_others_train(self) -> bool:
        return self._leads and self._membership is not None and self._membership.only_others_train

    def _report(self) -> HostReport:
        return HostReport(
            ready=self._ranks.ready,
            generation=self._ranks.generation,
            ranks=self._ranks.reports(),
            leaving=self._leaving,
            port=free_port() if self._ranks.generation is None else 0,
        )

    def _carry_out(self, message: dict[str, Any]) -> int | None:
        """Follow an order of the leader; return the exit status if the run or this host ends."""
        if "start" in message:
            self._has_first_rank = message["place"] == 0 and not self._leads
            self._ranks.start(message["start"], self._environments(message))
        elif "stop" in message:
            self._ranks.stop(stacks=message["stacks"])
        elif "drain" in message:
            self._ranks.signal(signal.SIGUSR1)
        elif "record" in message:
            self._record(MembershipEvent(**message["record"]))
        elif "parting" in message:
            self._parting = message["parting"]
        elif "refused" in message:
            raise UserError(f"--run-dir {self._folder.root}: {message['refused']}")
        elif "end" in message:
            level = logging.INFO if message["end"] == FINISHED else logging.ERROR
            logger.log(level, "elastic: %s", message["reason"])
            return int(message["end"])
        return None

    def _environments(self, message: dict[str, Any]) -> list[dict[str, str]]:
        """Return the variables of each of this host's ranks, torchrun's and podwright's."""
        count = self._policy.ranks_per_node
        shared = {
            "WORLD_SIZE": count * message["nodes"],
            "LOCAL_WORLD_SIZE": count,
            "MASTER_ADDR": message["address"],
            "MASTER_PORT": message["port"],
            beats.GENERATION: message["start"],
        }
        ranks = [{"RANK": message["place"] * count + local, "LOCAL_RANK": local} for local in range(count)]
        return [{name: str(value) for name, value in {**shared, **rank}.items()} for rank in ranks]

    async def _beat(self) -> None:
        while True:
            self._ranks.beat()
            await asyncio.sleep(LOOK_S)

    def _record(self, event: MembershipEvent) -> None:
        logger.warning("elastic: generation %d on %d nodes: %s", event.generation, event.nodes, event.cause)
        self._folder.add_event(event)
        if event.host:
            self._reporting = asyncio.create_task(asyncio.to_thread(self._count_failure, event.host))

    def _count_failure(self, host: str) -> None:
        try:
            times = self._offenders.add(host)
        except OSError as error:  # a full disk
            logger.warning("elastic: cannot count the failures of %s: %s", host, error)
            return
        if times:
            self._folder.add_event(OffenderEvent(host=host, times=times))
            offenders.report(host, times)

    def _leave(self) -> None:
        self._leaving = True


async def _lead(leader: Leader, server: asyncio.Server) -> None:
    try:
        await leader.lead(server)
    except (OSError, ValueError) as error:
        logger.warning("elastic: this host is no longer the leader: %s", error)
