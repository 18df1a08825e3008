"""Findings of ``podwright validate``, and its choice of nodes."""

import itertools
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from podwright.errors import ArgumentError, OperationError
from podwright.operations.account.hyperpod import Node
from podwright.operations.validation import validation_job
from podwright.operations.validation.validation_findings import findings
from podwright.operations.validation.validation_job import measurements as read_measurements
from podwright.operations.validation.validation_job import program, select, wait
from podwright.planning.collectives import all_reduce
from podwright_training.validation.measurements import Gpu, Measurements, NodeReport, Reduction

TYPE = "ml.p5.48xlarge"
NAMES = [f"ip-10-1-0-{number}" for number in range(4, 8)]
GPUS = tuple(Gpu(number, "H100", 1900.0, 1980.0, 0, (), 650.0 + number) for number in range(8))


def report(name, **changes):
    healthy = NodeReport(name, GPUS, 32, 0.00001, "chronyc", (900.0, 910.0), (1500.0, 1490.0))
    return replace(healthy, **changes)


def measurements(*, reports=(), slow=None, speed=430.0, transport="efa"):
    """Measurements of four nodes, one of which may be slow in all its pairs."""
    given = {item.name: item for item in reports}
    pairs = tuple(
        Reduction(pair, (speed / 4 if slow in pair else speed, speed / 4), transport, 1 << 30)
        for pair in itertools.combinations(NAMES, 2)
    )
    inside = tuple(Reduction((name,), (470.0, 471.0), "P2P", 1 << 30) for name in NAMES)
    return Measurements("", "", "1", 8, tuple(given.get(name, report(name)) for name in NAMES), inside, pairs)


def found(measured, left_out=()):
    return {(item.code, item.path[-1]): item.message for item in findings(measured, TYPE, dict(left_out))}


def test_a_healthy_cluster_has_no_findings():
    """Figures near those published for the type are no finding."""
    assert found(measurements()) == {}


def test_a_slow_node_is_named_with_its_reason():
    """The figure, the median node's, and the node's own fault that explains it."""
    hot = (replace(GPUS[0], throttled_by=("hardware thermal",), sm_clock_mhz=1005.0), *GPUS[1:])
    said = found(measurements(slow=NAMES[1], reports=[report(NAMES[1], gpus=hot)]))
    assert set(said) == {("slow-node", NAMES[1]), ("gpu-throttled", NAMES[1])}
    assert said["slow-node", NAMES[1]] == (
        f"{NAMES[1]} is slow in all its 3 pairs: 108 GB/s at most, where the median node reaches 430; "
        "GPU 0 is throttled"
    )
    assert said["gpu-throttled", NAMES[1]] == f"GPU 0 of {NAMES[1]} is throttled at 1005 MHz: hardware thermal"


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("gpu-ecc", {"gpus": (replace(GPUS[0], ecc_uncorrected=2), *GPUS[1:])}),
        ("gpu-count", {"gpus": GPUS[:7]}),
        ("slow-gpu", {"gpus": (replace(GPUS[0], tflops=500.0), *GPUS[1:])}),
        ("efa-count", {"efa_interfaces": 31}),
        ("clock", {"clock_offset_s": -2.0}),
        ("slow-files", {"write_mib_s": (200.0, 210.0)}),
        ("slow-files", {"read_mib_s": (200.0, 210.0)}),
        ("no-answer", {"error": "no answer within 600 s"}),
    ],
)
def test_one_nodes_fault_is_one_finding(code, changes):
    """Each fault names its node and nothing else."""
    assert set(found(measurements(reports=[report(NAMES[2], **changes)]))) == {(code, NAMES[2])}


def test_faults_of_the_whole_cluster_name_no_node():
    """TCP in place of EFA, and figures far below the published ones; a node that was left out is named."""
    said = found(measurements(speed=90.0, transport="Socket"), [("ip-10-1-0-9", "drained")])
    assert set(said) == {("no-efa", "nodes"), ("below-published", "nodes"), ("not-measured", "ip-10-1-0-9")}
    assert "published are 313" in said["below-published", "nodes"]


def test_a_pair_that_failed_is_a_finding_until_it_is_measured():
    """A second, successful measurement takes it back."""
    failed = Reduction((NAMES[0], NAMES[1]), error="no answer within 600 s")
    measured = measurements()
    others = measured.pairs[1:]
    assert set(found(replace(measured, pairs=(failed, *others)))) == {
        ("no-all-reduce", f"{NAMES[0]} and {NAMES[1]}"),
    }
    assert found(replace(measured, pairs=(failed, *measured.pairs))) == {}


def test_a_node_that_answers_nobody_is_one_finding():
    """Its failed pairs blame no partner."""
    pairs = tuple(
        replace(pair, bus_gb_s=(), error="no answer within 300 s") if NAMES[3] in pair.nodes else pair
        for pair in measurements().pairs
    )
    said = found(replace(measurements(), pairs=pairs))
    assert said == {
        ("no-all-reduce", NAMES[3]): f"{NAMES[3]} had no all-reduce with any other node: no answer within 300 s"
    }


def test_published_figures_have_sources():
    """Two sources of one size give a range; an unknown type has none."""
    known = all_reduce(TYPE, nodes=2, size_bytes=1 << 30)
    assert (known.low_gb_s, known.high_gb_s, len(known.sources)) == (313.29, 436.95, 2)
    assert all_reduce("ml.g5.xlarge", nodes=2, size_bytes=1 << 30) is None


def node(name, type_=TYPE, group="workers"):
    address = name.removeprefix("ip-").replace("-", ".")
    now = datetime.now(timezone.utc)
    return Node(group, 1, "compute", f"i-{name}", type_, "Running", "", now, address, "", "")


LISTED = """\
ip-10-1-0-4|dev*|idle|gpu:8(S:0-1)
ip-10-1-0-4|gpu|idle|gpu:8(S:0-1)
ip-10-1-0-5|dev*|mixed|gpu:h100:8(S:0-1)
ip-10-1-0-6|dev*|drained*|gpu:8
ip-10-1-0-9|dev*|idle|(null)
"""


def test_nodes_that_slurm_uses_are_chosen():
    """Those wanted that take jobs, in the partition with most of them; others are left out with their state."""
    wanted = [node(name) for name in NAMES]
    chosen = select(wanted, LISTED, partition=None)
    assert (chosen.partition, chosen.names, chosen.gpus) == ("dev", ("ip-10-1-0-4", "ip-10-1-0-5"), 8)
    assert chosen.excluded_nodes == {"ip-10-1-0-6": "drained", "ip-10-1-0-7": "in another partition"}
    assert select(wanted, LISTED, partition="gpu").names == ("ip-10-1-0-4",)


def test_nodes_that_cannot_be_compared_are_refused():
    """Two instance types, an unknown partition, nodes that Slurm does not know, and none that takes jobs."""
    with pytest.raises(ArgumentError, match="need one instance type to compare"):
        select([node(NAMES[0]), node(NAMES[1], "ml.g5.xlarge", "small")], LISTED, partition=None)
    with pytest.raises(ArgumentError, match="no partition other"):
        select([node(NAMES[0])], LISTED, partition="other")
    with pytest.raises(ArgumentError, match="knows none"):
        select([node("ip-10-9-9-9")], LISTED, partition=None)
    with pytest.raises(OperationError, match=r"no jobs on ip-10-1-0-6 \(drained\)"):
        select([node(NAMES[2])], LISTED, partition=None)


def test_the_program_is_the_same_for_the_same_sources():
    """Only the sources decide its bytes."""
    assert program() == program()


def test_the_program_has_every_module_that_it_imports(tmp_path):
    """Its parts are imported from the file that goes to the nodes, which have no podwright-train on their path."""
    path = tmp_path / "validation.zip"
    path.write_bytes(program())
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".py").replace("/", ".") for name in archive.namelist() if "/" in name]
    modules = [name.removesuffix(".__init__") for name in names]
    assert "podwright_training.validation.job" in modules
    code = f"""
import importlib, sys
sys.path.insert(0, {str(path)!r})
for name in {modules}:
    importlib.import_module(name)
own = [module for name, module in sys.modules.items() if name.startswith("podwright_training")]
print([module.__name__ for module in own if not module.__file__.startswith({str(path)!r})])
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


class Controller:
    """A node whose ``squeue`` gives one answer after another: a real controller takes minutes to give them."""

    def __init__(self, folder, *answers):
        for number, (status, text) in enumerate(answers, 1):
            words = f"echo {WARNING} >&2\necho {text!r} >&{1 + bool(status)}\n" if (status, text) != KILLED else ""
            (folder / f"answer-{number}").write_text(f"{words}exit {status}\n")
        (folder / "squeue").write_text(
            f'#!/bin/bash\nif [ -n "$SQUEUE_FORMAT2" ]; then mark=${{SQUEUE_FORMAT2##*:}}\n'
            '  echo "NODE_FAIL${mark}NonZeroExitCode${mark}"; exit; fi\n'
            f"printf x >> {folder}/asked\n. {folder}/answer-$(stat -c %s {folder}/asked)\n"
        )
        (folder / "squeue").chmod(0o755)
        self.folder = folder

    def run(self, line):
        return subprocess.run(
            ["bash", "-c", f"PATH={self.folder}:$PATH; {line}"], capture_output=True, text=True, check=True
        ).stdout


WARNING = "squeue: s_p_parse_file: file /etc/slurm/accounting.conf is empty"
SILENT = (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
KILLED = (137, "")  # squeue, by a node without memory
GONE = (1, "slurm_load_jobs error: Invalid job id specified")


@pytest.mark.parametrize("end", [GONE, (0, ""), (0, "FAILED NonZeroExitCode")])
def test_a_controller_that_does_not_answer_ends_no_job(tmp_path, monkeypatch, capsys, end):
    """The job is followed until Slurm says that it has ended; a job without a log is said with Slurm's state."""
    monkeypatch.setattr(validation_job, "POLL_S", 0.0)
    controller = Controller(tmp_path, (0, "RUNNING None"), SILENT, KILLED, (0, "RUNNING None"), end)
    wait(controller, str(tmp_path), "7")
    assert (tmp_path / "asked").read_text() == "x" * 5
    assert f"job 7: {SILENT[1]}\n" in capsys.readouterr().err
    with pytest.raises(OperationError, match=r"job 7 wrote no log; Slurm has NODE_FAIL \(NonZeroExitCode\)"):
        read_measurements(controller, str(tmp_path), "7")


def test_a_controller_that_is_silent_for_long_is_an_error(tmp_path, monkeypatch):
    """The message has Slurm's own words."""
    monkeypatch.setattr(validation_job, "POLL_S", 0.0)
    monkeypatch.setattr(validation_job, "SILENCE_S", 0.0)
    with pytest.raises(OperationError, match="job 7: slurm_load_jobs error: Unable to contact slurm controller"):
        wait(Controller(tmp_path, SILENT, SILENT), str(tmp_path), "7")
