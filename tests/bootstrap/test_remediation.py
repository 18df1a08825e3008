"""Remediation's decisions: which sick nodes are rebooted or replaced, and when."""

from __future__ import annotations

import os
import subprocess
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.features import Remediation
from podwright_bootstrap.health_checks import findings
from podwright_bootstrap.host import kernel_messages
from podwright_bootstrap.remediation import checks
from podwright_bootstrap.remediation.decision import (
    DRAIN,
    REBOOT,
    RECURRENCE_S,
    REPLACE,
    Act,
    Claim,
    NodeState,
    Report,
    decide,
    decide_claim,
    parse_nodes,
)
from podwright_bootstrap.slurm.listing import Occupant

NOW = 1_800_000_000
CHECKS = st.lists(st.sampled_from(["gpu_memory", "xid", "nvlink", "efa", "file_system"]), min_size=1, unique=True)
REPORTS = st.builds(
    Report,
    st.sampled_from([REBOOT, REPLACE]),
    st.integers(NOW - 3600, NOW + 60),
    CHECKS.map(tuple),
)
REASON_OF_PROLOG = "podwright: GPU 1 has 3 uncorrected memory errors"
# The last two are slurmctld's: of a prolog that could not say why, and of a reboot.
FREE = ("", REASON_OF_PROLOG, "Prolog error", "Node unexpectedly rebooted")
REASONS = st.sampled_from([*FREE, "Not responding", "Action:Reboot"])
LIMITS = st.builds(Remediation, st.integers(1, 60), st.integers(1, 50), st.integers(1, 100), st.booleans())


@st.composite
def clusters(draw):
    """Nodes of any state and with any report, and what was done to some of them before."""
    names = [f"ip-10-0-0-{number}" for number in range(draw(st.integers(1, 30)))]
    nodes = [NodeState(name, draw(st.booleans()), draw(REASONS), draw(st.none() | REPORTS)) for name in names]
    past = st.builds(
        Act,
        st.sampled_from(names),
        st.sampled_from([REBOOT, REPLACE]),
        st.integers(NOW - 2 * RECURRENCE_S, NOW),
        CHECKS.map(tuple),
    )
    return nodes, draw(st.lists(past, max_size=10))


@given(clusters(), LIMITS)
def test_acts_stay_within_the_limits(cluster, limits):
    """Acts and nodes that are out for other reasons are within the share, acts within the hour's number."""
    nodes, done = cluster
    acts = decide(nodes, done, limits, NOW)
    acted = {act.node for act in acts}
    assert len(acted) == len(acts)
    if acts:
        sick = {node.name for node in nodes if node.report and node.reason in FREE}
        others_out = sum(node.out and node.name not in sick for node in nodes)
        assert len(acts) + others_out <= max(1, len(nodes) * limits.max_percent // 100)
        assert len(acts) + sum(NOW - act.at < 3600 for act in done) <= limits.max_per_hour


@given(clusters(), LIMITS)
def test_only_free_nodes_with_a_fresh_report_are_acted_on(cluster, limits):
    """A node without a report, with an old one, or that somebody else has taken out is left alone."""
    nodes, done = cluster
    by_name = {node.name: node for node in nodes}
    for act in decide(nodes, done, limits, NOW):
        node = by_name[act.node]
        assert node.report is not None
        assert 0 <= NOW - node.report.at <= 3 * 60 * limits.interval_minutes
        assert node.reason in FREE
        assert act.action != REPLACE or limits.replace
        assert act.action != DRAIN or not node.out


@given(st.integers(2, 50), REPORTS, LIMITS)
def test_a_fault_of_all_is_no_fault_of_theirs(count, report, limits):
    """Nothing is done to nodes that all report the same, as when the file system does not answer."""
    nodes = [NodeState(f"n{number}", report=report) for number in range(count)]
    assert decide(nodes, [], limits, NOW) == []


def sick(action: str = REBOOT, **changes: object) -> list[NodeState]:
    """Ten nodes, the first of which reports a GPU's memory."""
    first = NodeState("n0", report=Report(action, NOW - 10, ("gpu_memory",)), **changes)
    return [first, *(NodeState(f"n{number}") for number in range(1, 10))]


def test_a_fault_that_comes_back_needs_another_instance():
    """The first time the node is rebooted; within a day of that it is replaced, or drained if that is off."""
    (first,) = decide(sick(), [], Remediation(), NOW)
    assert first == Act("n0", REBOOT, NOW, ("gpu_memory",))
    before = Act("n0", REBOOT, NOW - RECURRENCE_S + 60, ("gpu_memory", "xid"))
    assert [act.action for act in decide(sick(), [before], Remediation(), NOW)] == [REPLACE]
    assert [act.action for act in decide(sick(), [before], Remediation(replace=False), NOW)] == [DRAIN]
    assert decide(sick(out=True), [before], Remediation(replace=False), NOW) == []
    other = Act("n0", REBOOT, NOW - 60, ("efa",))
    assert [act.action for act in decide(sick(), [other], Remediation(), NOW)] == [REBOOT]


@pytest.mark.parametrize("reason", FREE)
def test_a_node_that_its_prolog_has_drained_is_acted_on(reason):
    """Neither our prolog's reason nor Slurm's own stops what the node's report asks for."""
    assert [act.action for act in decide(sick(out=True, reason=reason), [], Remediation(), NOW)] == [REBOOT]


def test_the_gravest_comes_first():
    """A replacement comes before a reboot when the limits leave room for one act."""
    nodes = [*sick(), NodeState("z", report=Report(REPLACE, NOW, ("gpu_rows",)))]
    assert [(act.node, act.action) for act in decide(nodes, [], Remediation(), NOW)] == [("z", REPLACE)]


@given(REPORTS)
def test_a_report_survives_slurm(report):
    """The controller reads in Slurm's line of a node what the node wrote."""
    line = (
        "NodeName=ip-10-0-0-1 Arch=x86_64 CPUTot=8 State=MIXED+DRAIN ThreadsPerCore=1 "
        f"Comment={report.to_text()} Reason=podwright: GPU 1 has = signs [root@2026-11-23T07:00:00]"
    )
    (node,) = parse_nodes(line)
    assert node == NodeState("ip-10-0-0-1", True, "podwright: GPU 1 has = signs", report)
    assert parse_nodes("NodeName=n1 State=IDLE Comment=of-somebody") == [NodeState("n1")]
    assert parse_nodes("NodeName=n1 State=IDLE*")[0].out


USERS = st.integers(2001, 2004)
ARRAYS = st.sampled_from(["10", "11", "12", "13"])
ANY_CLAIM = st.builds(
    Claim, USERS, ARRAYS, st.sampled_from(["n0", "n1"]), st.integers(NOW - 2 * 86400, NOW + 2 * 86400)
)
CLAIMED = st.builds(
    Act,
    st.sampled_from(["n0", "n1", "n2"]),
    st.just(REBOOT),
    st.integers(NOW - 2 * RECURRENCE_S, NOW),
    CHECKS.map(tuple),
    st.none() | USERS,
)


@given(
    st.lists(ANY_CLAIM, max_size=30),
    st.lists(st.builds(Occupant, USERS, ARRAYS), max_size=5),
    st.lists(CLAIMED, max_size=10),
    LIMITS,
    st.booleans(),
)
def test_claims_reboot_nodes_of_their_own_user_alone(claims, occupants, done, limits, out):
    """No set of claims acts where another user has a job, replaces a node, or goes beyond a day's and an hour's few."""
    node = NodeState("n0", out=out)
    act = decide_claim(node, claims, occupants, done=done, limits=limits, now=NOW)
    if act is None:
        return
    assert act.action == REBOOT
    assert not out
    assert {occupant.uid for occupant in occupants} == {act.claimed_by}
    assert any(
        claim.uid == act.claimed_by
        and claim.node == "n0"
        and claim.array in {occupant.array for occupant in occupants}
        and 0 <= NOW - claim.at <= 3 * 60 * limits.interval_minutes
        for claim in claims
    )
    day = [past for past in done if past.claimed_by is not None and NOW - past.at < RECURRENCE_S]
    assert not [past for past in day if past.node == "n0"]
    assert sum(past.claimed_by == act.claimed_by for past in day) < 3
    hour = [past for past in done if NOW - past.at < 3600]
    assert len(hour) < limits.max_per_hour
    claimed = sum(past.claimed_by is not None for past in hour) + 1
    assert limits.max_per_hour - claimed >= claimed  # as many are left for what nodes report themselves


@given(st.lists(st.tuples(st.integers(0, 11), USERS, st.sampled_from(["n0", "n1", "n2", "n3"])), max_size=60), LIMITS)
def test_claims_of_a_day_reboot_few_nodes_and_replace_none(claims, limits):
    """Whoever claims whatever every two hours: a node is rebooted once, a user has three reboots, none is replaced."""
    done: list[Act] = []
    for hours, uid, name in sorted(claims):
        now = NOW + 7200 * hours
        claim = Claim(uid, "10", name, now)
        act = decide_claim(NodeState(name), [claim], [Occupant(uid, "10")], done=done, limits=limits, now=now)
        done += [act] if act else []
    assert {act.action for act in done} <= {REBOOT}
    assert all(count == 1 for count in Counter(act.node for act in done).values())
    assert all(count <= 3 for count in Counter(act.claimed_by for act in done).values())
    nodes = [NodeState("n0", report=Report(REBOOT, NOW, ("run", "gpu_memory"))), *map(NodeState, "abcdefghij")]
    assert [act.action for act in decide(nodes, done, Remediation(max_per_hour=100), NOW)] in ([REBOOT], [])


@pytest.mark.parametrize(
    ("occupants", "acts"),
    [
        ([(2001, "10")], True),
        ([(2001, "10"), (2001, "12")], True),  # two jobs of one user
        ([(2001, "12")], False),  # the claimer's job has left the node
        ([(2001, "10"), (2002, "13")], False),  # another user's job is there
        ([(2002, "10")], False),
        ([], False),
    ],
)
def test_a_claim_counts_where_the_claimer_alone_has_jobs(occupants, acts):
    """Its array has to have the node, and nobody else's job may be there."""
    found = decide_claim(
        NodeState("n0"),
        [Claim(2001, "10", "n0", NOW)],
        [Occupant(*each) for each in occupants],
        done=[],
        limits=Remediation(),
        now=NOW,
    )
    assert found == (Act("n0", REBOOT, NOW, ("run",), claimed_by=2001) if acts else None)


def test_a_user_has_three_nodes_rebooted_a_day():
    """A user whose jobs claim a fault of another node every two hours has three reboots until the day is over."""
    done: list[Act] = []
    for number in range(14):
        now = NOW + 7200 * number
        claims, occupants = [Claim(2001, "10", f"n{number}", now)], [Occupant(2001, "10")]
        act = decide_claim(NodeState(f"n{number}"), claims, occupants, done=done, limits=Remediation(), now=now)
        done += [act] if act else []
    assert [act.node for act in done] == ["n0", "n1", "n2", "n12", "n13"]


@pytest.mark.parametrize(("late_s", "acts"), [(-1, False), (0, True), (900, True), (901, False), (-(10**11), False)])
def test_a_claim_of_the_past_or_the_future_counts_for_nothing(late_s, acts):
    """A claim is young: three intervals of checks, by the controller's clock."""
    claims = [Claim(2001, "10", "n0", NOW - late_s)]
    act = decide_claim(
        NodeState("n0"), claims, [Occupant(2001, "10")], done=[], limits=Remediation(interval_minutes=5), now=NOW
    )
    assert bool(act) == acts


def test_a_claimed_reboot_is_no_reason_to_replace():
    """A node that reports a fault within a day of a claimed reboot is rebooted, as the first time."""
    before = Act("n0", REBOOT, NOW - 60, ("gpu_memory",), claimed_by=2001)
    assert [act.action for act in decide(sick(), [before], Remediation(), NOW)] == [REBOOT]


@pytest.mark.parametrize("changes", [{"out": True}, {"report": Report(REBOOT, NOW, ("xid",))}])
def test_a_claim_leaves_nodes_alone_that_are_out_or_report_themselves(changes):
    """The first is somebody's already, and what the second reports has limits and remedies of its own."""
    claim = Claim(2001, "10", "n0", NOW)
    node = NodeState("n0", **changes)
    assert decide_claim(node, [claim], [Occupant(2001, "10")], done=[], limits=Remediation(), now=NOW) is None


@given(st.text(max_size=60))
def test_a_claim_is_read_from_its_form_alone(text):
    """Other comments are none, and no comment says whose it is."""
    for wrong in (text, "podwright:reboot:5:run", "podwright:reboot:5:run@n1 n2", "podwright:stop:5:run@n1", "run@n1"):
        assert Claim.from_text(2001, "10", wrong) is None
    for wrong in ("@-n1", "@n1\n", "@n1;x", "@" + text + " "):
        assert Claim.from_text(2001, "10", f"podwright:reboot:5:run{wrong}") is None
    assert Claim.from_text(2001, "10", "podwright:replace:5:gpu_rows@n1") == Claim(2001, "10", "n1", 5)


def test_a_reason_has_no_report():
    """A reason is a text: what looks like a comment in it is none, before the node's own or without one."""
    line = "NodeName=n1 State=IDLE+DRAIN Reason=x Comment=podwright:replace:5:gpu_rows [root@2026] Comment=mine Extra=x"
    assert parse_nodes(line)[0].report is None


def test_login_nodes_are_not_out_of_service():
    """Slurm shows them as drained for ever, which leaves the share of nodes that may be out to the others."""
    for slurms in ("", " : Not responding"):  # which Slurm adds when a backup controller takes over
        gate = f"NodeName=gate State=IDLE+DRAIN Reason=podwright: login node{slurms} [root@2026-11-23T07:00:00]"
        assert parse_nodes(f"{gate}\nNodeName=n1 State=IDLE") == [NodeState("n1")]


@pytest.mark.parametrize(
    ("state", "reason", "is_free"),
    [
        ("DOWN", "Node unexpectedly rebooted", True),
        ("DOWN", "Node unexpectedly rebooted : Not responding", True),
        ("DOWN", "Node unexpectedly rebooted : reboot issued : Not responding", True),
        ("DOWN", "none : Not responding", True),
        ("DOWN+REBOOT_ISSUED", "Node unexpectedly rebooted : reboot issued", False),
        ("DOWN", "Action:Reboot : Not responding", False),
        ("DOWN", "a disk is loud : reboot issued", False),
        ("DOWN", "Node unexpectedly rebooted, twice", False),
    ],
)
def test_what_slurm_adds_to_a_reason_is_no_reason_of_somebody(state: str, reason: str, *, is_free: bool) -> None:
    """A sick node is rebooted whatever Slurm has added to its own reason, unless that reboot is in progress."""
    report = Report(REBOOT, NOW - 10, ("xid",)).to_text()
    line = f"NodeName=n1 State={state} Reason={reason} [slurm@2026-11-23T07:00:00] Comment={report}"
    acts = decide(parse_nodes(f"{line}\nNodeName=n2 State=IDLE"), (), Remediation(), NOW)
    assert [act.node for act in acts] == (["n1"] if is_free else [])


def test_a_node_in_maintenance_is_left_alone_and_counts_as_out():
    """HyperPod's deep health checks reserve the node: a reboot would end them, and a second node would be too many."""
    line = "NodeName={} State={} Comment=" + Report(REBOOT, NOW - 10, ("xid",)).to_text()
    tested, sick = line.format("n1", "IDLE+MAINTENANCE"), line.format("n2", "IDLE")
    others = "\n".join(f"NodeName=n{number} State=IDLE" for number in range(3, 9))
    one_node = Remediation(max_percent=10)
    assert decide(parse_nodes(f"{tested}\n{others}"), (), one_node, NOW) == []
    assert decide(parse_nodes(f"{tested}\n{sick}\n{others}"), (), one_node, NOW) == []
    assert [act.node for act in decide(parse_nodes(f"{sick}\n{others}"), (), one_node, NOW)] == ["n2"]


def test_errors_of_the_driver_are_not_those_of_programs(tmp_path, monkeypatch):
    """Xids that a reset cures ask for a reboot, one that it does not for a replacement, a program's for nothing."""
    log = [
        f"3,{number},5,-;NVRM: Xid (PCI:0000:10:1c): {number}, pid=7, name=python, text\n SUBSYSTEM=pci\n"
        for number in (13, 31, 43, 79, 64)
    ]
    monkeypatch.setattr(kernel_messages, "KMSG", tmp_path / "kmsg")
    kernel_messages.KMSG.write_text("".join(log))
    facts = InstanceFacts(accelerator="gpu")
    assert [list(checks.CHECKS[name][1](facts)) for name in ("xid", "xid_memory")] == [
        ["the driver reported Xid 79 of the GPU at 0000:10:1c"],
        ["the driver reported Xid 64 of the GPU at 0000:10:1c"],
    ]
    assert checks.action(["efa", "xid_memory"]) == REPLACE
    assert checks.action(["efa", "file_system"]) == REBOOT


def test_a_driver_that_does_not_answer_is_no_broken_memory(tmp_path, monkeypatch):
    """The node is rebooted then; another instance, which costs its volumes, is for what a reboot cannot cure."""
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = InstanceFacts(accelerator="gpu", accelerators_per_node=4)
    found = [name for name in ("accelerators", "gpu_memory", "gpu_rows") if findings(checks.CHECKS[name][1], facts)]
    assert (found, checks.action(found)) == (["accelerators", "gpu_memory"], REBOOT)


@pytest.mark.hosts  # needs root
def test_a_user_reports_no_error_of_the_driver():
    """An option of mount that the real kernel repeats in its log is no Xid, not even after a line end."""
    claim = f"NVRM: Xid (PCI:{os.getpid():04x}:10:1c): 64"
    for option in (f"{claim} x", f"{os.getpid()}\n[    5.1] {claim} x"):
        words = ("unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "-o", option, "x", "/mnt")
        subprocess.run(words, user=65534, group=65534, extra_groups=[], capture_output=True, check=False)
    said = [message for message in kernel_messages.messages() if f"{os.getpid():04x}:10:1c" in message]
    if not said:
        pytest.skip("this machine's kernel lets users mount nothing")
    assert len(said) == 2
    assert f"{os.getpid():04x}:10:1c" not in {bus for bus, _ in checks.xids()}


@pytest.mark.parametrize(("per_hour", "claims_followed"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_claims_leave_half_of_an_hour_to_what_nodes_report(per_hour, claims_followed):
    """However many users claim reboots: as many as were made for them, and more, are left for faults."""
    limits, done = Remediation(max_per_hour=per_hour), []
    for uid in range(2001, 2011):
        name = f"n{uid}"
        claim = Claim(uid, "10", name, NOW)
        act = decide_claim(NodeState(name), [claim], [Occupant(uid, "10")], done=done, limits=limits, now=NOW)
        done += [act] if act else []
    assert len(done) == claims_followed
