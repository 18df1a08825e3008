"""Rounds of pairs, and what is called slow."""

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_training.validation import gpus, node
from podwright_training.validation.all_reduce import transport_of
from podwright_training.validation.job import doubtful, silent_nodes
from podwright_training.validation.measurements import Gpu, Measurements, NodeReport, Reduction
from podwright_training.validation.rounds import rounds
from podwright_training.validation.slow import slow, slow_nodes, slow_pairs

NODES = [f"n{number}" for number in range(8)]


@given(st.integers(min_value=0, max_value=60))
def test_every_pair_meets_once_in_the_fewest_rounds(count):
    """An even n of nodes takes n - 1 rounds, or n if n is odd, and no node is twice in a round."""
    names = [f"n{number}" for number in range(count)]
    made = rounds(names)
    met = [frozenset(pair) for pairs in made for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(map(sorted, itertools.combinations(names, 2)))
    assert len(made) == max(0, count - 1 + count % 2)
    for pairs in made:
        flat = [name for pair in pairs for name in pair]
        assert len(set(flat)) == len(flat) == count - count % 2


def measured(speed_of, seed, *, noise=0.3):
    """Measurements of all pairs: a pair is as fast as its slower node, and other load slows some measurements."""
    dice = random.Random(seed)  # noqa: S311 (no secret)
    return {
        pair: [min(speed_of(name) for name in pair) * (1 - noise * dice.random()) for _ in range(8)]
        for pair in itertools.combinations(NODES, 2)
    }


@given(st.sets(st.sampled_from(NODES), max_size=3), st.integers(0, 1000))
def test_exactly_the_slow_nodes_are_named(bad, seed):
    """Up to three of eight nodes at a third of the speed are named under load, their partners and pairs are not."""
    pairs = measured(lambda name: 100 / 3 if name in bad else 100, seed)
    assert set(slow_nodes(pairs)) == bad
    assert slow_pairs(pairs) == []


def test_a_slow_link_names_its_pair_and_no_node():
    """Two nodes that are fast with all others have something slow between them."""
    pairs = measured(lambda _: 100, 1, noise=0.05)
    pairs["n2", "n5"] = [20.0] * 8
    assert slow_nodes(pairs) == []
    assert slow_pairs(pairs) == [("n2", "n5")]


def test_two_subjects_name_nobody():
    """Of two different speeds nobody knows which is wrong."""
    assert slow({"a": [1.0], "b": [100.0]}) == []
    assert slow_nodes({("a", "b"): [1.0]}) == []


def test_doubtful_pairs_are_measured_again():
    """A failed pair, and a slow node with the two fastest others."""
    pairs = measured(lambda name: 10 if name == "n3" else 100 + int(name[1]), 1, noise=0.01)
    found = [Reduction(pair, tuple(speeds)) for pair, speeds in pairs.items()]
    found[0] = Reduction(("n0", "n1"), error="no answer within 600 s")
    assert doubtful(found)[0] == ("n0", "n1")
    assert set(doubtful(found)[1:]) == {("n3", "n7"), ("n3", "n6")}


def test_a_node_that_answers_nobody_is_left_out():
    """After two partners it costs no further time limits, and its pairs are not measured again."""
    found = [Reduction(("n0", "n1"), error="no answer"), Reduction(("n2", "n3"), (1.0,))]
    assert silent_nodes(found) == set()
    found += [Reduction(("n0", "n2"), error="no answer"), Reduction(("n1", "n3"), (1.0,))]
    assert silent_nodes(found) == {"n0"}
    assert doubtful(found) == []


def test_measurements_survive_their_document():
    """The JSON document gives the same measurements; another version of it is refused."""
    gpu = Gpu(0, "H100", 1980.0, 1980.0, 0, ("hardware thermal",), 650.0)
    report = NodeReport("n0", (gpu,), 32, -0.001, "chronyc", (1.0, 2.0), (3.0,))
    found = Measurements("a", "b", "7", 8, (report,), (Reduction(("n0",), (400.0,)),), (Reduction(("n0", "n1")),))
    document = json.loads(found.to_json())
    assert Measurements.from_dict(document) == found
    with pytest.raises(ValueError, match="schema"):
        Measurements.from_dict({**document, "schema": "podwright.measurements/2"})
    with pytest.raises(ValueError, match="nodes"):
        Measurements.from_dict({key: value for key, value in document.items() if key != "nodes"})


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("x NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 8 nics)", "efa"),
        ("x NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)\nNCCL INFO Using network AWS Libfabric", "efa"),
        ("x NCCL INFO Using network Socket", "Socket"),
        ("", "unknown"),
    ],
)
def test_the_network_that_nccl_used_is_read_from_its_log(log, expected):
    """Libfabric's provider counts, else NCCL's own word."""
    assert transport_of(log) == expected


def program(folder: Path, name: str, output: str) -> None:
    """Put a program on PATH that prints what the real one prints."""
    path = folder / name
    path.write_text(f"#!/bin/bash\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    """Reasons that are faults are named, power management is none, and missing values are None."""
    program(
        tmp_path,
        "nvidia-smi",
        "0, NVIDIA H100 80GB HBM3, 1980, 1980, 0, 0x0000000000000004\n"
        "1, NVIDIA H100 80GB HBM3, 1005, 1980, 3, 0x0000000000000048\n"
        "2, NVIDIA A10G, 1710, 1710, [N/A], 0x0000000000000001",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    first, second, third = gpus.query()
    assert (first.throttled_by, first.ecc_uncorrected) == ((), 0)
    assert (second.throttled_by, second.ecc_uncorrected) == (("hardware slowdown", "hardware thermal"), 3)
    assert (third.sm_clock_mhz, third.ecc_uncorrected, third.throttled_by) == (1710.0, None, ())


def test_the_clock_is_read_from_chrony(tmp_path, monkeypatch):
    """A slow clock is negative; without a time service there is no figure."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "chronyc", "Reference ID    : A9FEA97B\nSystem time     : 0.000012345 seconds slow of NTP time")
    assert node.clock_offset() == (-0.000012345, "chronyc")
    program(tmp_path, "chronyc", "506 Cannot talk to daemon")
    program(tmp_path, "timedatectl", "       Server: 169.254.169.123\n       Offset: +1.250ms")
    assert node.clock_offset() == (0.00125, "timedatectl")
    program(tmp_path, "timedatectl", "")
    assert node.clock_offset() == (None, "")
