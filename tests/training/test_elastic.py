"""Elastic runs: agents of several hosts on this one, their ranks over gloo."""

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.elastic.terms import Terms
from podwright_training.run_folder import RunFolder

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("elastic_host.py")
STEPS, FEWER_STEPS, LIMIT_S = 30, 18, 300  # a generation takes three steps before it waits, and one when it is to end
ERROR = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(.*)", re.MULTILINE)  # what a stack ends with
SAME = {"global_batch_size": 12, "data_streams": 12, "validation_sequences": 12, "max_steps": STEPS}
SAME |= {"checkpoint_freq": 4, "train_batch_size": 4}


class ElasticRun:
    """A run whose hosts a test starts, kills, freezes and asks to leave."""

    def __init__(self, root, fork_server, flags, **options):
        self.folder = RunFolder(root)
        self._fork_server, self._flags, self._options = fork_server, flags, options
        self.agents = {}

    def start(self, *numbers, ranks=1):
        """Start the agents of hosts."""
        for number in numbers:
            self.folder.root.mkdir(exist_ok=True)
            self.agents[number] = self._fork_server(
                script=str(SCRIPT),
                argv=[f"--member={number}", f"--ranks={ranks}", *self._flags(self.folder.root, **self._options)],
                ranks=1,
                output=str(self.folder.root / f"host-{number}.log"),
            )["pid"]

    def signal(self, host, number):
        """Send an agent a signal."""
        os.kill(self.agents[host], number)

    def ranks_of(self, host):
        """The processes of a host's ranks."""
        (server,) = children(self.agents[host])
        return children(server)

    def wait_for(self, generation):
        """Wait until a generation has taken a step; its event.

        Where another program took its port, it ended before that: then the next one's event, with its cause.
        """
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            events = [event for event in logged(self.folder, "membership") if event["generation"] >= generation]
            for event in events:
                if event.get("stepping_s") is not None:
                    return event | {"cause": events[0]["cause"]}
                assert "which was free before" in self.output(), event
            time.sleep(0.05)
        raise AssertionError(f"generation {generation} did not come: {self.output()}")

    def output(self):
        """Return what the agents and ranks have printed last."""
        return "\n".join(f"{path.name}: {path.read_text()[-4000:]}" for path in self.folder.root.glob("host-*.log"))

    def end(self):
        """End the agents of a test that failed, and with them their ranks."""
        for pid in self.agents.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)

    def wait_for_end(self, pid):
        """Wait for a process that was an agent; its exit status."""
        return self._fork_server(wait=pid)["status"]

    def finish(self):
        """Let the run go, and wait for all agents; their exit statuses."""
        (self.folder.root / "go").touch()
        statuses = {host: self.wait_for_end(pid) for host, pid in self.agents.items()}
        self.agents.clear()
        return statuses

    def steps(self):
        """Loss, batch and number of sequences of each step as it counts in the end."""
        return {event["step"]: event for event in logged(self.folder, "train")}


def stranger(run, sends):
    """A connection to the run's leader from somebody who does not know its secret."""
    term = Terms(run.folder.elastic / "terms").newest()
    connection = socket.create_connection((term.address, term.port), timeout=LIMIT_S)
    connection.sendall(sends)
    return connection


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_flags, call_ranks):
    """Returns the steps of a run on one rank that nothing disturbed."""

    @cache
    def alone(steps):
        folder = tmp_path_factory.mktemp("alone")
        status, output = call_ranks(1, "train", *tiny_flags(folder, **(SAME | {"max_steps": steps})))
        assert status == 0, output
        return {event["step"]: event for event in logged(RunFolder(folder), "train")}

    return alone


@pytest.fixture
def elastic_run(tmp_path, fork_server, tiny_flags):
    """A run of 2 to 4 hosts, unless the test says otherwise."""
    runs = []

    def elastic_run(**options):
        values = {
            **SAME,
            "min_nodes": 2,
            "max_nodes": 4,
            "heartbeat_timeout_s": 5,  # a busy machine keeps a healthy host from answering for 2 s
            "hang_timeout_s": LIMIT_S,  # ranks wait for the test
            "memory_checkpoint_freq": 1,
            **options,
        }
        runs.append(ElasticRun(tmp_path / "run", fork_server, tiny_flags, **values))
        return runs[-1]

    yield elastic_run
    for run in runs:
        run.end()


def same_numbers(run, alone):
    """Every step has the undisturbed run's sequences, and its loss but for rounding."""
    steps = run.steps()
    assert sorted(steps) == sorted(alone)
    for step, event in alone.items():
        assert steps[step]["batch_digest"] == event["batch_digest"]
        assert steps[step]["sequences"] == event["sequences"]
        assert steps[step]["loss"] == pytest.approx(event["loss"], abs=1e-5)


def test_four_hosts_three_two_and_four_again_train_the_same_model(elastic_run, alone):
    """One host is killed, then the leader freezes, then both come back: batches and losses are the undisturbed ones.

    In the end one of the four fails at each start: the others train without it.
    Strangers who connect to the leader, and signals that ask for stacks, change nothing.
    """
    run = elastic_run()
    run.start(0, 1, 2, 3)
    hosts = run.wait_for(1)["hosts"]
    assert len(hosts) == 4
    strangers = [stranger(run, sends) for sends in (b"", b"{}\n", b"[" * 60_000 + b"\n", b"x" * 100_000)]
    for number in range(4):
        run.signal(number, signal.SIGUSR2)
        (server,) = children(run.agents[number])
        os.kill(server, signal.SIGUSR2)
    leader, *_, last = (int(host.removeprefix("127.0.0.")) - 2 for host in hosts)
    for connection in strangers:
        with connection, connection.makefile("rb") as answer, suppress(ConnectionResetError):
            assert b"proof" not in answer.read()
    run.signal(last, signal.SIGKILL)
    event = run.wait_for(2)
    assert event["cause"] == f"the agent on {hosts[-1]} closed its connection"
    run.signal(leader, signal.SIGSTOP)
    event = run.wait_for(event["generation"] + 1)
    assert (event["nodes"], event["cause"]) == (2, f"the agent on {hosts[0]}, which led, was lost")
    killed = run.agents.pop(last)
    run.start(last)
    run.signal(leader, signal.SIGCONT)
    while (event := run.wait_for(event["generation"] + 1))["nodes"] < 4:
        assert event["lost_steps"] == 0, "a run grows at the end of a step, after a save"
    logs = [path.read_text() for path in run.folder.root.glob("host-*.log")]
    errors = [error for text in logs for error in ERROR.findall(text)]
    assert not errors, "a rank that sees first that a peer is lost says so in one line"
    (run.folder.root / f"broken-host-{last}").touch()
    event = run.wait_for(event["generation"] + 3)
    assert event["cause"].endswith(
        f" on {hosts[-1]} ended with exit status 1; it is left out: starts in a row failed there"
    )
    assert hosts[-1] not in event["hosts"]
    assert run.finish() == dict.fromkeys(range(4), 0)
    assert run.wait_for_end(killed) == -signal.SIGKILL
    same_numbers(run, alone(STEPS))


def test_a_pipeline_shrinks_to_the_hosts_that_have_its_state(elastic_run, alone):
    """Tensor parallelism in a host, pipeline across two: of three hosts the two train that have what the lost one had.

    The leader is none of them; the run goes on when it leaves. A rank that hangs is named.
    """
    # a step's time is that of its passes, which are not larger for two sequences than for one
    run = elastic_run(tensor_parallel=2, pipeline_parallel=2, pipeline_micro_batches=2, max_steps=FEWER_STEPS)
    run.start(0, 1, 2, 3, ranks=2)
    hosts = run.wait_for(1)["hosts"]
    leader, _, lost, last = (int(host.removeprefix("127.0.0.")) - 2 for host in hosts)
    run.signal(lost, signal.SIGKILL)
    event = run.wait_for(2)
    assert event["hosts"] == [hosts[1], hosts[3]]
    assert event["lost_steps"] <= 1
    run.signal(leader, signal.SIGTERM)
    event = run.wait_for(event["generation"] + 1)
    assert event["cause"].startswith(f"the agent on {hosts[0]}, which led, was asked to leave")
    assert (sorted(event["hosts"]), event["lost_steps"]) == (sorted([hosts[1], hosts[3]]), 0)
    os.kill(run.ranks_of(last)[0], signal.SIGSTOP)
    event = run.wait_for(event["generation"] + 1)
    cause = re.match(rf"rank (\d+) on {hosts[3]} is stopped \(SIGSTOP\)", event["cause"])
    assert cause, event["cause"]
    assert "trainer.py" in run.folder.stacks(int(cause[1])).read_text()
    assert run.finish() == dict.fromkeys(range(4), 0) | {leader: 75, lost: -signal.SIGKILL}
    same_numbers(run, alone(FEWER_STEPS))


def test_an_error_of_the_user_ends_the_run(elastic_run):
    """An error that a new start would not change is one line of each host, and ends all of them."""
    run = elastic_run(vocab_size=10)
    run.start(0, 1, 2, 3)
    assert set(run.finish().values()) == {2}
    output = (run.folder.root / "host-0.log").read_text()
    assert output.count("vocab_size 10 is smaller") == 1


def test_a_host_that_reaches_no_leader_ends(tmp_path, tiny_flags, call):
    """Its name leads nowhere, for itself too: it says so, once, and does not hold its node for ever."""
    flags = tiny_flags(tmp_path, **SAME, min_nodes=1, max_nodes=2, nodes_timeout_s=2, heartbeat_timeout_s=5)
    status, output = call("join", *flags, "--address=256.256.256.256")
    assert status == 1
    obstacle = r"leader at 256\.256\.256\.256: .+"
    assert 1 <= len(re.findall(rf"WARNING: elastic: {obstacle}", output)) <= 4  # or there is no answer within a second
    assert re.search(rf"ERROR: elastic: no leader reached in \d+ s \(nodes_timeout_s\); {obstacle}", output)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nproc-per-node=0"], "--nproc-per-node: got 0, need at least 1"),
        (["--nproc-per-node=-2"], "--nproc-per-node: got -2, need at least 1"),
    ],
)
def test_a_host_without_ranks_is_one_line(tmp_path, tiny_flags, capsys, monkeypatch, flags, message):
    """Also where Slurm's variables are there but empty."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "")
    assert main(["join", *tiny_flags(tmp_path, **SAME, min_nodes=1), *flags]) == 2
    assert message in capsys.readouterr().err
