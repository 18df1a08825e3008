"""An elastic run has one leader and trains once, when hosts and networks fail in any order."""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import tempfile
import time
from dataclasses import asdict, fields, replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from podwright_bootstrap.remediation.decision import Claim
from podwright_training.beats import Activity, Beats
from podwright_training.config.train_config import TrainConfig, conflicts
from podwright_training.elastic.channel import Channel, ChannelError, accept, introduce
from podwright_training.elastic.host_ranks import memory_folder
from podwright_training.elastic.host_report import HostRankReport, HostReport
from podwright_training.elastic.leader import Leader
from podwright_training.elastic.membership import (
    FAILED,
    FIRST_WAIT_S,
    GATHER_S,
    MOST_IN_VAIN,
    Dismiss,
    Drain,
    End,
    Membership,
    Past,
    Start,
    Stop,
    describe_hang,
)
from podwright_training.elastic.offenders import REPORT, Offenders, report
from podwright_training.elastic.policy import Policy
from podwright_training.elastic.state_holders import fewest_holders
from podwright_training.elastic.terms import Election, Term, Terms
from podwright_training.errors import ConfigError, UserError
from podwright_training.ports import listen
from podwright_training.private_folder import make_closed
from podwright_training.run_folder import RunFolder
from podwright_training.run_secret import run_secret

NOBODY = 65534
HOSTS, TIMEOUT_S, TICK_S = 4, 5.0, 0.5
POLICY = Policy(sizes=(2, 3), ranks_per_node=1, elastic_wait_s=0, nodes_timeout_s=1e9, heartbeat_timeout_s=TIMEOUT_S)


class Host:
    """A host whose network and processes are numbers."""

    def __init__(self, number):
        self.name, self.number = f"host-{number}", number
        self.alive = True
        self.frozen = self.cut = False
        self.election = Election(TIMEOUT_S)
        self.leads = self.members = None  # its term, and the members
        self.had_others = False  # in its term
        self.follows = None  # term, when the leader was last heard
        self.training = None  # generation
        self.step = 0

    def report(self):
        ranks = (HostRankReport(activity=Activity.COMPUTING, step=self.step),) if self.training else ()
        return HostReport(ready=True, generation=self.training, ranks=ranks)


class Run(RuleBasedStateMachine):
    """An elastic run of at least two hosts and at most three, and its folder."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.terms = Terms(self.folder)
        self.hosts = [Host(number) for number in range(HOSTS)]
        self.now, self.started = 0.0, []

    def teardown(self):
        for host in self.hosts:
            host.cut = host.frozen = False
            if not host.alive:
                self.revive(host.number)
        self.wait(40)
        assert [host for host in self.hosts if host.training], "nobody trains though all hosts are well"
        shutil.rmtree(self.folder)

    @rule(number=st.integers(0, HOSTS - 1))
    def kill(self, number):
        self.hosts[number].alive = False

    @rule(number=st.integers(0, HOSTS - 1))
    def revive(self, number):
        if not self.hosts[number].alive:
            self.hosts[number] = Host(number)

    @rule(number=st.integers(0, HOSTS - 1))
    def cut_or_mend(self, number):
        self.hosts[number].cut ^= True

    @rule(number=st.integers(0, HOSTS - 1))
    def freeze_or_thaw(self, number):
        self.hosts[number].frozen ^= True

    @rule(ticks=st.integers(1, 25))
    def wait(self, ticks):
        for _ in range(ticks):
            self.now += TICK_S
            for host in self.hosts:
                if host.alive and not host.frozen:
                    self._live(host)
            self.one_generation_trains()

    @invariant()
    def one_generation_trains(self):
        able = [host for host in self.hosts if host.alive and not host.frozen and not host.cut and host.training]
        whole = {
            generation
            for generation, members in self.started
            if {host.number for host in able if host.training == generation} == members
        }
        assert len(whole) <= 1, f"generations {whole} train at once"

    def _reach(self, one, other):
        return one is other or not (one.cut or other.cut)

    def _live(self, host):
        if host.leads:
            self._renew(host)
        if host.follows:
            self._follow(host)
        else:
            self._look(host)
        if host.leads:
            self._lead(host)

    def _renew(self, host):
        renewed, members = host.leads, host.members
        relied_on = len(members.members) > 1 or members.generation is not None
        host.had_others = host.had_others or relied_on
        lost_all = host.had_others and not relied_on
        if relied_on or lost_all != host.leads.open:
            renewed = self.terms.renew(replace(host.leads, generation=members.number, open=lost_all))
        elif self.terms.newest().number > host.leads.number:
            renewed = None
        host.leads = renewed

    def _leader_of(self, term):
        return self.hosts[int(term.leader.removeprefix("host-"))]

    def _follow(self, host):
        term, heard_s = host.follows
        leader = self._leader_of(term)
        there = leader.alive and leader.leads and leader.leads.number == term.number
        known = there and host.name in leader.members.members
        if self._reach(host, leader) and known and not leader.frozen:
            host.follows = term, self.now
            host.election.look(leader.leads, self.now)
            leader.members.report(host.name, host.report(), now=self.now)
        elif (self._reach(host, leader) and not known and not leader.frozen) or self.now - heard_s > TIMEOUT_S:
            host.follows = host.training = None

    def _look(self, host):
        term = self.terms.newest()
        host.election.look(term, self.now)
        if term and self._reach(host, leader := self._leader_of(term)):
            if not (leader.alive and leader.leads and leader.leads.number == term.number):
                host.election.refuse(term.number)
            elif not leader.frozen:
                leader.members.join(host.name, host=host.name, number=host.number, now=self.now)
                host.follows = term, self.now
                return
        if not host.leads and host.election.may_claim(self.now):
            number, generation = (term.number + 1, term.generation) if term else (1, 0)
            new = Term(number, host.name, host.name, 1, None, generation=generation)
            if self.terms.claim(new):
                host.leads, host.had_others = new, False
                host.members = Membership(POLICY, leader=host.name, now=self.now, past=Past(generation=generation))

    def _lead(self, leader):
        for host in self.hosts:
            if not host.alive and self._reach(host, leader):
                leader.members.lose(host.name, "closed its connection", now=self.now)
        for command in leader.members.decide(self.now):
            assert not isinstance(command, End)
            if isinstance(command, Start):
                self._start(leader, command)
            elif isinstance(command, Stop | Drain):
                for name in command.members:
                    host = self.hosts[int(name.removeprefix("host-"))]
                    if self._hears(host, leader) and host.training == command.generation:
                        host.training = None
            else:
                assert isinstance(command, Dismiss) or command.event.nodes in POLICY.sizes

    def _hears(self, host, leader):
        followed = host.follows and host.follows[0].number == leader.leads.number
        return host.alive and self._reach(host, leader) and followed

    def _start(self, leader, command):
        assert len(command.members) in POLICY.sizes
        renewed = self.terms.renew(replace(leader.leads, generation=command.generation, open=False))
        if renewed is None:
            return
        leader.leads = renewed
        assert all(command.generation > generation for generation, _ in self.started), "a number was used twice"
        members = {int(name.removeprefix("host-")) for name in command.members}
        self.started.append((command.generation, members))
        for number in members:
            if self._hears(self.hosts[number], leader):
                assert self.hosts[number].training is None, "the last generation is not gone"
                self.hosts[number].training = command.generation


TestRun = Run.TestCase
TestRun.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_term_begins_once(tmp_path):
    """Of several hosts that want to lead one does; it loses its term when another one begins."""
    found = Terms(tmp_path)
    first = Term(1, "a", "host-a", 1, None)
    assert found.claim(first)
    assert not found.claim(replace(first, leader="b"))
    renewed = found.renew(first)
    assert renewed == found.newest() == replace(first, renewals=1)
    assert found.claim(replace(first, number=2, leader="b"))
    assert found.renew(renewed) is None


def test_a_leader_that_has_lost_all_others_is_not_waited_for():
    """Its open term may be followed by the next at once; one that it renews for somebody may not."""
    election, term = Election(TIMEOUT_S), Term(1, "a", "host-a", 1, None)
    election.look(term, 0.0)
    assert not election.may_claim(1.0)
    election.look(replace(term, renewals=1, open=True), 1.0)
    assert election.may_claim(1.0)
    election.look(replace(term, renewals=2), 1.0)
    assert not election.may_claim(1.0)


def two_hosts():
    """A leader whose generation of two hosts has started, at FIRST_WAIT_S."""
    members = Membership(POLICY, leader="a", now=0.0)
    for number, name in enumerate("ab"):
        members.join(name, host=name, number=number, now=0.0)
        members.report(name, HostReport(ready=True), now=FIRST_WAIT_S)
    (start,) = members.decide(FIRST_WAIT_S)
    return members, start


def test_a_step_that_one_host_reports_is_all_hosts():
    """A report that is late says that a rank still loads: no rank of the generation does."""
    members, start = two_hosts()
    steps = HostRankReport(activity=Activity.COMPUTING, began=6, step=7)
    for name, rank in (("a", steps), ("b", HostRankReport(activity=Activity.LOADING))):
        members.report(name, HostReport(ready=True, generation=start.generation, ranks=(rank,)), now=FIRST_WAIT_S + 1)
    (record,) = members.decide(FIRST_WAIT_S + 1)
    assert record.event.step == 6
    assert record.event.stepping_s == 0


def test_a_host_that_connects_again_ends_its_generation():
    """The leader has not noticed that the connection broke: the host's ranks are gone all the same."""
    members, start = two_hosts()
    trains = HostReport(ready=True, generation=start.generation, ranks=(HostRankReport(activity=Activity.COMPUTING),))
    for name in start.members:
        members.report(name, trains, now=FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == []
    members.lose("b", "connected again", now=FIRST_WAIT_S)
    members.join("b", host="b", number=1, now=FIRST_WAIT_S)
    *_, stop = members.decide(FIRST_WAIT_S)
    assert stop == Stop(start.generation, ("a", "b"))


def test_a_host_that_was_asked_to_leave_is_not_blamed():
    """Slurm may kill it before it has saved: nothing is wrong with its node; of several the other is named."""
    members, start = two_hosts()
    trains = HostReport(ready=True, generation=start.generation, ranks=(HostRankReport(activity=Activity.COMPUTING),))
    members.report("a", trains, now=FIRST_WAIT_S)
    members.report("b", replace(trains, leaving=True), now=FIRST_WAIT_S)
    assert Drain(start.generation, ("a", "b")) in members.decide(FIRST_WAIT_S)
    members.lose("b", "closed its connection", now=FIRST_WAIT_S)
    assert Stop(start.generation, ("a",)) in members.decide(FIRST_WAIT_S)
    members.report("a", HostReport(ready=True), now=FIRST_WAIT_S)
    members.join("c", host="c", number=2, now=FIRST_WAIT_S)
    members.report("c", HostReport(ready=True), now=FIRST_WAIT_S)
    assert Start(2, ("a", "c")) in members.decide(FIRST_WAIT_S)
    change = members.generation.change
    assert (change["host"], change["cause"]) == (None, "the agent on b closed its connection, as it was asked to leave")


def test_starts_that_all_lose_a_host_end_at_last():
    """A memory that is too small kills agents too; the run goes on for nodes_timeout_s, and ends after ten starts."""
    policy, starts = replace(POLICY, nodes_timeout_s=1000.0), []
    members = Membership(policy, leader="a", now=0.0)
    members.join("a", host="a", number=0, now=0.0)
    for now in itertools.count(100.0, 30.0):
        members.join("b", host="b", number=1, now=now)
        for name in "ab":
            members.report(name, HostReport(ready=True), now=now)
        starts += [command for command in members.decide(now) if isinstance(command, Start)]
        loads = HostReport(ready=True, generation=len(starts), ranks=(HostRankReport(activity=Activity.LOADING),))
        for name in "ab":
            members.report(name, loads, now=now)
        members.lose("b", "closed its connection", now=now)
        ended = [command for command in members.decide(now) if isinstance(command, End)]
        if ended:
            break
    assert now >= 1000
    assert len(starts) > MOST_IN_VAIN
    cause = "the agent on b closed its connection"
    assert ended == [End(FAILED, f"{len(starts)} starts in a row came no further, the last because {cause}")]


@pytest.mark.parametrize(("leaving", "ended"), [(True, None), (False, FAILED)])
def test_hosts_that_all_leave_come_back_to_the_run(tmp_path, leaving, ended):
    """Slurm starts them again: the term says that the run has ended only if it has."""
    found, term = Terms(tmp_path), Term(1, "a", "host-a", 1, "12")
    assert found.claim(term)

    async def lead():
        now = time.monotonic()
        members = Membership(POLICY, leader="a", now=now - 2 * POLICY.nodes_timeout_s)
        members.join("a", host="host-a", number=0, now=now)
        members.report("a", HostReport(ready=True, leaving=leaving), now=now)
        leader = Leader(term, found, members=members, secret=b"", options="", record=print)
        await leader.lead(await asyncio.start_server(leader.welcome, sock=listen()))

    asyncio.run(lead())
    assert found.newest().ended == ended


def test_a_new_leader_waits_for_hosts_whose_ranks_are_ending():
    """A host of the last generation that is there, but not free yet, has a part of the state; a spare has not."""
    past = Past(generation=1, holders=("lost", "a", "b", "c"), leader="lost")
    members = Membership(POLICY, leader="a", now=0.0, past=past)
    for number, name in enumerate(["a", "b", "c", "spare"]):
        members.join(name, host=name, number=number, now=0.0)
        members.report(name, HostReport(ready=True, generation=1 if name == "c" else None), now=0.0)
    assert members.decide(0.1) == []
    members.report("c", HostReport(ready=True), now=0.2)
    assert members.decide(0.2) == [Start(2, ("a", "b", "c"))]


def test_a_generation_that_loads_nothing_holds_no_state():
    """A host of the one before it, which has the state, is waited for; the new one's are not needed."""
    members, start = two_hosts()
    loads = HostReport(ready=True, generation=start.generation, ranks=(HostRankReport(activity=Activity.LOADING),))
    for name in start.members:
        members.report(name, loads, now=FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == []
    assert members.holders == ()
    trains = replace(loads, ranks=(HostRankReport(activity=Activity.DRAWING),))
    for name in start.members:
        members.report(name, trains, now=FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == []
    assert members.holders == ("a", "b")
    members.lose("b", "closed its connection", now=FIRST_WAIT_S)
    members.join("c", host="c", number=2, now=FIRST_WAIT_S)
    for name in "ac":
        members.report(name, HostReport(ready=True), now=FIRST_WAIT_S)
    members.decide(FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == [Start(2, ("a", "c"))]
    assert members.holders == ("a", "b")
    members.lose("c", "closed its connection", now=FIRST_WAIT_S)
    members.join("b", host="b", number=1, now=FIRST_WAIT_S)
    members.join("d", host="d", number=3, now=FIRST_WAIT_S)
    members.report("d", HostReport(ready=True), now=FIRST_WAIT_S)
    members.decide(FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == [], "b is not ready yet"
    members.report("b", HostReport(ready=True), now=FIRST_WAIT_S)
    assert members.decide(FIRST_WAIT_S) == [Start(3, ("a", "b", "d"))]


@pytest.mark.parametrize(("leader", "chosen"), [("a", "ac"), ("b", "ac"), ("c", "ca")])
def test_hosts_that_hold_the_whole_state_take_part(leader, chosen):
    """Of three hosts a pipeline needs two: those that have the fourth's part, and their own and the third's."""
    policy = replace(POLICY, sizes=(2, 4))
    past = Past(generation=1, holders=("a", "b", "c", "lost"), leader="lost")
    members = Membership(policy, leader=leader, now=0.0, past=past)
    for number, name in enumerate("abc"):
        members.join(name, host=name, number=number, now=0.0)
        members.report(name, HostReport(ready=True), now=0.0)
    assert members.decide(0.0) == [Start(2, tuple(chosen))]


@pytest.mark.parametrize("culprit", "abc")
def test_a_host_where_start_after_start_fails_is_left_out(culprit):
    """The rank that ended first is the cause; the third start goes without its host, also if that leads."""
    members = Membership(POLICY, leader="a", now=0.0)
    for number, name in enumerate("abc"):
        members.join(name, host=f"host-{name}", number=number, now=0.0)
    for generation in (1, 2):
        for name in "abc":
            members.report(name, HostReport(ready=True), now=0.0)
        assert Start(generation, ("a", "b", "c")) in members.decide(0.0)
        for name in "abc":
            rank = HostRankReport(exit_status=1, ended_s=0.4 if name == culprit else 0.3)
            members.report(name, HostReport(ready=True, generation=generation, ranks=(rank,)), now=0.0)
        assert members.decide(0.0) == []
        *_, stop = members.decide(GATHER_S)
        assert stop == Stop(generation, ("a", "b", "c"))
    for name in "abc":
        members.report(name, HostReport(ready=True), now=0.0)
    assert members.decide(0.0) == [Start(3, tuple(sorted({*"abc"} - {culprit})))]
    assert members.generation.change["cause"].startswith(f"rank {'abc'.index(culprit)} on host-{culprit} ended with")
    assert members.generation.change["cause"].endswith("; it is left out: starts in a row failed there")


@given(size=st.integers(1, 7), data=st.data())
def test_the_fewest_hosts_hold_the_whole_state(size, data):
    """They are living, hold each part, and no smaller set of hosts does; the set is empty if a part is lost."""
    ring = range(size)
    living = data.draw(st.sets(st.sampled_from(ring), min_size=1))
    first, at_most = data.draw(st.sampled_from(sorted(living))), data.draw(st.integers(1, size))

    def hold_all(hosts):
        return all(hosts.intersection({part, (part + 1) % size}) for part in ring)

    subsets = [set(each) for many in range(1, size + 1) for each in combinations(living, many)]
    least = min((len(hosts) for hosts in subsets if hold_all(hosts)), default=size + 1)
    found = fewest_holders(ring, living, preferred=first, at_most=at_most)
    assert bool(found) == (least <= at_most)
    if found:
        assert found <= living
        assert hold_all(found)
        assert len(found) <= at_most


def test_a_term_that_a_lost_answer_began_is_begun(tmp_path, monkeypatch):
    """NFS repeats a request whose answer was lost, and then says that the file exists."""
    link = os.link

    def link_and_lose_the_answer(source, target):
        link(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    assert Terms(tmp_path).claim(Term(1, "a", "host-a", 1, None))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"x"', "\0", '{"members": 3}'])
def test_a_damaged_term_is_one_line(tmp_path, text):
    """The file is named, and what to do; the term before it is not taken for the newest."""
    assert Terms(tmp_path).claim(Term(1, "a", "host-a", 1, None))
    file = tmp_path / "00000002.json"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        Terms(tmp_path).newest()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{file} is damaged, or another version")
    assert line.endswith("end all hosts of the run, remove the file, and start again")


def _is_term(values):
    numbers = all(isinstance(values[name], int) for name in ("number", "port", "renewals", "generation", "step"))
    texts = all(isinstance(values[name], str) for name in ("leader", "address"))
    members = isinstance(values["members"], list | str) and all(isinstance(each, str) for each in values["members"])
    others = isinstance(values["job"], str | None) and isinstance(values["open"], bool)
    return numbers and texts and members and others and isinstance(values["ended"], int | None)


@given(
    name=st.sampled_from([field.name for field in fields(Term)]),
    value=st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2)),
    more=st.booleans(),
)
def test_a_term_of_another_version_is_read_whole_or_not_at_all(tmp_path_factory, name, value, more):
    """Values of other types and unknown names are one line, which no host takes for a term."""
    folder = tmp_path_factory.mktemp("terms")
    terms, file = Terms(folder), folder / "00000001.json"
    assert terms.claim(Term(1, "a", "host-a", 1, None, members=("a",)))
    values = {**json.loads(file.read_text()), name: value, **({"spares": 2} if more else {})}
    file.write_text(json.dumps(values))
    if more or not _is_term(values):
        with pytest.raises(UserError, match=re.escape(str(file))):
            terms.newest()
    else:
        assert asdict(terms.newest()) == {**values, "members": tuple(values["members"])}


def test_a_beat_is_never_half_written(tmp_path):
    """A rank that reads while its agent writes does not take the agent for lost."""
    beats = Beats.create(tmp_path / "beats", ranks=1)
    beats.beat(timeout_s=60)
    agent = os.fork()
    if agent == 0:
        for _ in range(1_000_000):
            beats.beat(timeout_s=60)
        os._exit(0)
    try:
        assert not any(beats.silent for _ in range(100_000))
    finally:
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)


def test_nobody_joins_without_the_secret(tmp_path):
    """Neither side takes the other for a member or the leader unless it proves that it knows the run's secret."""

    async def meet(leaders, members):
        outcome = asyncio.get_running_loop().create_future()

        async def welcome(reader, writer):
            try:
                await accept(Channel(reader, writer), leaders)
                outcome.set_result(True)
            except ChannelError as error:
                outcome.set_result(str(error))
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(welcome, "127.0.0.1", 0) as server:
            channel = Channel(*await asyncio.open_connection(*server.sockets[0].getsockname()))
            try:
                await introduce(channel, members)
            except ChannelError:
                return await outcome
            finally:
                channel.close()
            return await outcome

    folder = RunFolder(tmp_path)
    secret = run_secret(folder)
    assert run_secret(folder) == secret
    assert asyncio.run(meet(secret, secret)) is True
    assert asyncio.run(meet(secret, b"another")) == "does not know the run's secret"
    folder.secret.write_text("")
    with pytest.raises(UserError, match="has no 64 hexadecimal digits, it is damaged: remove it"):
        run_secret(folder)
    folder.secret.chmod(0o644)
    with pytest.raises(UserError, match="others may not read"):
        run_secret(folder)


@pytest.mark.parametrize(
    "change",
    [lambda _: b'{"end": 0, "reason": ""}\n', lambda line: line * 2, lambda line: line.replace(b"0}", b"1}")],
    ids=["add", "repeat", "change"],
)
def test_whoever_takes_over_a_connection_gives_no_orders(change):
    """Both sides have proved that they know the secret, to a relay between them: what it sends is no order."""
    received = []

    async def welcome(reader, writer):
        await accept(channel := Channel(reader, writer), b"secret")
        channel.send(port=0)
        writer.close()

    async def meet():
        async def relay(reader, writer):
            far, near = await asyncio.open_connection(*leader.sockets[0].getsockname())
            writer.write(await far.readline())
            near.write(await reader.readline())
            writer.write(await far.readline())
            writer.write(change(await far.readline()))
            near.close()
            writer.close()

        leader = await asyncio.start_server(welcome, "127.0.0.1", 0)
        between = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with leader, between:
            channel = Channel(*await asyncio.open_connection(*between.sockets[0].getsockname()))
            try:
                await introduce(channel, b"secret")
                while True:
                    received.append(await channel.receive())
            finally:
                channel.close()

    with pytest.raises(ChannelError, match="sent a message that is not of this run"):
        asyncio.run(meet())
    assert received in ([], [{"port": 0}])


@pytest.mark.parametrize("sent", [b"", b"half", b"[]\n", b"{\n", b"\xff\n", b"[" * 60_000 + b"\n", b"x" * 100_000])
def test_what_is_no_message_ends_the_connection(sent):
    """Neither the leader nor a member fails because of what somebody else sends."""

    async def receive():
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await Channel(reader, None).receive()

    with pytest.raises(ChannelError):
        asyncio.run(receive())


def test_nobody_else_makes_a_hosts_folders(tmp_path):
    """Another user's folder is not used, in memory or for the secret; what a killed agent left is removed."""
    left = memory_folder(tmp_path, 0)
    folder = memory_folder(tmp_path, 0)
    try:
        assert not left.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        os.chown(folder, NOBODY, NOBODY)
        other = memory_folder(tmp_path, 0)
        assert other != folder
        other.rmdir()
        assert folder.exists()
    finally:
        folder.rmdir()
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(UserError, match=f"belongs to uid {NOBODY}, need your own"):
        make_closed(tmp_path)


@pytest.mark.parametrize("task", [None, "3"])
def test_a_report_of_a_host_is_its_jobs_comment(tmp_path, monkeypatch, task):
    """The comment goes to this task of the array, and to no job without Slurm."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nprintf "%s\n" "$@" > {tmp_path}/given\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    if task:
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    report("ip-10-0-16-9", 3)
    given = (tmp_path / "given").read_text().split() if (tmp_path / "given").exists() else []
    assert [word for word in given if not word.startswith("Comment=")] == (["update", "JobId=12_3"] if task else [])
    if task:
        (comment,) = [word.removeprefix("Comment=") for word in given if word.startswith("Comment=")]
        assert Claim.from_text(2001, "12", comment).node == "ip-10-0-16-9"


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        ({"min_nodes": 4, "max_nodes": 2}, 1, "min_nodes 4 is above max_nodes 2"),
        ({"max_nodes": 2}, 1, "max_nodes 2 needs min_nodes"),
        ({"min_nodes": 1, "global_batch_size": None}, 1, "needs global_batch_size"),
        ({"min_nodes": 1, "max_nodes": 4}, 8, "max_nodes 4 x 8 ranks: global_batch_size 12 leaves some of the 32"),
        ({"min_nodes": 1, "max_nodes": 4, "tensor_parallel": 2}, 1, "min_nodes 1 x 1 ranks: tensor_parallel 2"),
    ],
)
def test_a_policy_that_cannot_train_is_one_line(options, ranks, message):
    """Wrong numbers of nodes are found before any host starts."""
    config = TrainConfig(**{"global_batch_size": 12, "data_streams": 96, **options})
    problems = [problem for _, problem in conflicts(config)]
    if not problems:
        with pytest.raises(ConfigError) as caught:
            Policy.of(config, ranks_per_node=ranks)
        problems = caught.value.problems
    assert len(problems) == 1
    assert message in problems[0]


def test_only_whole_copies_of_the_model_take_part():
    """A pipeline spans two nodes: a third one waits until there are four."""
    config = TrainConfig(
        min_nodes=2, max_nodes=4, global_batch_size=12, train_batch_size=2, data_streams=12, pipeline_parallel=2
    )
    policy = Policy.of(config, ranks_per_node=1)
    assert policy.sizes == (2, 4)
    assert [policy.fitting(nodes) for nodes in range(6)] == [0, 0, 2, 2, 4, 4]


def test_the_rank_that_the_others_wait_for_is_named():
    """A stopped rank, else those that came least far; of ranks at the same place each may be the cause."""
    waits = HostRankReport(activity=Activity.COMPUTING, step=11)
    reads, stopped = replace(waits, activity=Activity.DRAWING), replace(waits, stopped=True)
    assert describe_hang([(0, "a", waits), (1, "b", reads)]) == ("rank 1 on b hangs in step 12, drawing", "b")
    cause, host = describe_hang([(0, "a", stopped), (1, "b", waits)])
    assert (cause, host) == ("rank 0 on a is stopped (SIGSTOP) in step 12, computing", "a")
    cause, host = describe_hang([(0, "a", waits), (1, "b", waits)])
    assert cause.startswith("all ranks hang in step 12")
    assert host is None


def test_a_host_that_fails_again_and_again_is_reported(tmp_path):
    """The third failure within a day is one too many, whoever leads; the controller understands the report."""
    file = tmp_path / "failures.json"
    assert [Offenders(file).add(host) for host in "abaaa"] == [0, 0, 0, 3, 4]
    for damaged in ("half", json.dumps([[time.time() + 1e8, "a"]] * 2)):
        file.write_text(damaged)
        assert Offenders(file).add("a") == 0
    claim = Claim.from_text(2001, "7", REPORT.format(at=5, host="ip-10-0-16-9"))
    assert claim == Claim(2001, "7", "ip-10-0-16-9", 5)
