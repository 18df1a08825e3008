"""A rehearsal of another size: its settings file, the size of its job, its summary of boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from podwright import cli
from podwright.check.errors import InvalidSettingsError
from podwright_rehearsal.run import cluster_status
from podwright_rehearsal.run.rehearsal import job_size
from podwright_rehearsal.run.resize import resized

CHECKOUT = Path(__file__).parents[2]


def test_only_the_count_of_the_first_compute_group_changes(tmp_path: Path) -> None:
    """The file stays the user's, comments too, but for one number."""
    config = CHECKOUT / "examples/production/cluster.yaml"
    written, wanted = resized(config, 13, folder=tmp_path)
    counts = {group.name: group.count for group in wanted.cluster.instance_groups}
    assert counts == {"controller": 2, "login": 1, "h100": 13, "cpu": 4}
    before, after = config.read_text().splitlines(), written.read_text().splitlines()
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [
        ("      count: 16", "      count: 13")
    ]


def test_a_number_that_the_file_does_not_admit_is_refused(tmp_path: Path) -> None:
    """The rules hold for the changed file as for any other; the finding has its line."""
    with pytest.raises(InvalidSettingsError) as refused:
        resized(CHECKOUT / "examples/production/cluster.yaml", 1, folder=tmp_path)
    assert "2 or more with instance-connectivity" in str(refused.value)


@pytest.mark.parametrize("count", ["0", "many"])
def test_a_rehearsal_needs_a_compute_node(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    """None at all is refused before anything starts."""
    with pytest.raises(SystemExit):
        cli.main(["rehearse", "--compute-nodes", count])
    assert "need a whole number from 1" in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "size"), [(1, (1, 4)), (2, (2, 2)), (3, (2, 2)), (4, (4, 1)), (16, (4, 1))])
def test_four_ranks_train_on_as_many_hosts_as_share_them(nodes: int, size: tuple[int, int]) -> None:
    """Hosts of the job and ranks on each."""
    assert job_size(nodes) == size


def test_each_boot_step_has_its_slowest_host() -> None:
    """In the order of the boot; a step counts only hosts that it is for."""
    seconds = {"ip-1": {"lustre": 1.0, "slurm": 2.5}, "ip-2": {"lustre": 3.0, "environment": 40.0, "slurm": 0.5}}
    assert [line.split() for line in cluster_status.slowest_boot_steps(seconds).splitlines()] == [
        ["lustre", "3.0", "s", "ip-2"],
        ["slurm", "2.5", "s", "ip-1"],
        ["environment", "40.0", "s", "ip-2"],
    ]
