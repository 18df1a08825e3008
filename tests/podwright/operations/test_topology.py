"""The topology that slurmctld 24.11 prints: leaves by rank, and nodes that it lacks or still names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podwright.cli import main
from podwright.operations.health import doctor, overview
from podwright.operations.health.topology import NODES, TOPOLOGY, JobNode, Topology, hostnames, job_nodes, topology
from podwright.operations.nodes.slurm_states import SINFO
from podwright_testing.documents import as_described
from podwright_testing.hyperpod import ClusterMaker

# As slurmctld 24.11.5 prints them, with SwitchAsNodeRank and nodes whose topology is out of date.
TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=ip-10-0-16-[6,8]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=ip-10-0-16-[7,9,77]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=ip-10-0-16-[6-9] Switches=leaf[1-2]
"""
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=ip-10-0-16-[6,8] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=ip-10-0-16-[7,9] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=ip-10-0-16-[6-9] BlockSize=4
"""
ORDER = (11, 6, 8, 7, 9)
ALL_NODES = "".join(f"NodeName=ip-10-0-16-{number} Arch=x86_64 CoresPerSocket=1\n" for number in ORDER)


class Controller:
    """A controller whose commands print these texts."""

    def __init__(self, shown: str, *, queued: str = "", nodes: str = ALL_NODES) -> None:
        self.texts = {f"{TOPOLOGY} || true": shown, NODES: nodes, SINFO: ""}
        self.queued = queued

    def run(self, line: str) -> str:
        """Return what the line prints."""
        return self.queued if line.startswith("squeue --noheader --jobs=") else self.texts.get(line, "")


def test_nodes_without_a_leaf_and_leaves_without_a_node_are_named() -> None:
    """A replacement leaves the old node in a leaf, and the new one in none; blocks count like leaves."""
    assert topology(Controller(TREE)).problems() == [
        "Slurm's topology lacks ip-10-0-16-11, so they run no job",
        "Slurm's topology still names ip-10-0-16-77, which slurm.conf lacks",
    ]
    blocks = topology(Controller(BLOCKS))
    assert blocks.leaves["ip-10-0-16-9"] == "b2"
    assert len(blocks.problems()) == 1
    assert topology(Controller("No topology information available\n")).problems() == []


def test_login_nodes_and_empty_leaves_are_no_problem() -> None:
    """HyperPod's topology has no login nodes, which run no job anyway; a leaf whose nodes are gone names none."""
    reason = "Reason=podwright: login node : Not responding [root@2026-11-28T11:18:23]"
    login_nodes = "".join(f"NodeName={name} Arch=x86_64 State=IDLE+DRAIN {reason}\n" for name in ("login-1", "login-2"))
    empty_leaves = (
        "SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=(null)\nBlockName=b3 BlockIndex=2 Nodes=(null) BlockSize=2\n"
    )
    shown = TREE.replace("leaf2 Level=0 LinkSpeed=1 Nodes=", "leaf2 Level=0 LinkSpeed=1 Nodes=ip-10-0-16-11,login-2,")
    current = topology(Controller(shown + empty_leaves, nodes=ALL_NODES + login_nodes))
    assert current.problems() == ["Slurm's topology still names ip-10-0-16-77, which slurm.conf lacks"]
    drained = ALL_NODES.replace("11 Arch=x86_64", "11 Arch=x86_64 Reason=the podwright: login node is slow")
    assert topology(Controller(TREE, nodes=drained)).errors() != []


def test_nodes_of_a_job_are_in_the_order_of_its_ranks() -> None:
    """Slurm numbers nodes by leaf; a node that the topology lacks has none, and a waiting job has no nodes."""
    controller = Controller(TREE, queued="ip-10-0-16-[6-8,11]\n")
    assert job_nodes(controller, "12", topology(controller)) == [
        JobNode(0, "ip-10-0-16-11", ""),
        JobNode(1, "ip-10-0-16-6", "leaf1"),
        JobNode(2, "ip-10-0-16-8", "leaf1"),
        JobNode(3, "ip-10-0-16-7", "leaf2"),
    ]
    assert job_nodes(Controller(TREE, queued="\n"), "12", Topology({}, ())) == []


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("ip-10-0-16-6", ["ip-10-0-16-6"]),
        ("ip-10-0-16-[6-8,11],ip-10-0-17-4", [f"ip-10-0-{end}" for end in ("16-6", "16-7", "16-8", "16-11", "17-4")]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("", []),
    ],
)
def test_hostlists_are_expanded(hostlist: str, names: list[str]) -> None:
    """Numbers keep their width, and several brackets are combined, as `scontrol show hostnames` does."""
    assert hostnames(hostlist) == names


@pytest.mark.usefixtures("folder")
def test_status_and_doctor_show_the_topology(
    maker: ClusterMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`status --job` lists rank, node and leaf; doctor names each problem; a word is no job."""
    maker.make("leaves")
    controller = Controller(TREE, queued="ip-10-0-16-[6-7]\n")
    monkeypatch.setattr(overview, "controller_shell", lambda *_: controller)
    assert main(["status", "--cluster", "leaves", "--job", "12"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if "leaf" in line] == [
        ["0", "ip-10-0-16-6", "leaf1"],
        ["1", "ip-10-0-16-7", "leaf2"],
    ]
    assert "topology: Slurm's topology lacks ip-10-0-16-11" in shown
    assert main(["status", "--cluster", "leaves", "--job", "12", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    as_described(document)
    assert document["job_nodes"][1] == {"rank": 1, "node": "ip-10-0-16-7", "leaf": "leaf2"}
    assert len(document["topology"]) == 2

    plugin = tmp_path / "session-manager-plugin"
    plugin.write_text("#!/bin/sh\n")
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor.slurm_states, "controller_shell", lambda *_: controller)
    main(["doctor", "--cluster", "leaves", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    levels = {finding["message"]: finding["level"] for finding in findings if finding["code"] == "topology"}
    assert levels == {
        "Slurm's topology lacks ip-10-0-16-11, so they run no job": "error",
        "Slurm's topology still names ip-10-0-16-77, which slurm.conf lacks": "warning",
    }
    with pytest.raises(SystemExit):
        main(["status", "--cluster", "leaves", "--job", "first"])
    assert "got first, need the number of a job" in capsys.readouterr().err
