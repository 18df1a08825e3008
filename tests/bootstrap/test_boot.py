"""A host boots: what is there afterwards, for each role, and that a second boot changes nothing."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from podwright_bootstrap.contract import NodeRecord
from tests.bootstrap.conftest import make_wheel

pytestmark = pytest.mark.hosts


def test_compute_node_has_everything_before_it_takes_jobs(make_host, cloud):
    """A compute node mounts, builds, records itself and starts slurmd last."""
    host = make_host()
    boot = host.boot()
    assert boot.exit_code == 0, boot.output
    assert list(boot.results)[-1] == "slurm"
    record = NodeRecord.from_json(host.read("opt/podwright/node.json"))
    assert (record.role, record.partition, record.accelerators_per_node) == ("compute", "gpu", 4)
    assert record.partitions["gpu"].accelerator_name == "A10G"
    assert Path(str(record.environment)).name == cloud.environment.name
    assert (cloud.environment / ".complete").exists()
    assert cloud.environment.with_name(f"current-{platform.machine()}").readlink() == Path(cloud.environment.name)
    assert host.read("opt/podwright/slurmd.env") == "SLURMD_OPTIONS=--conf-server 10.1.0.10\n"
    assert (cloud.shared / "runs").stat().st_uid == 1000
    assert (host.disk / "home/ubuntu/.ssh/id_ed25519").stat().st_mode & 0o777 == 0o600


def test_second_boot_changes_nothing(make_host):
    """After any number of boots the host is as after the first."""
    for role in ("compute", "controller", "login"):
        boot = make_host(role=role, address="10.1.0.6" if role == "login" else "10.1.0.5").boot(
            "./on_create.sh && ./on_create.sh"
        )
        assert boot.exit_code == 0, boot.output
        assert ", 0 changes, " not in boot.summaries[0]
        assert ", 0 changes, " in boot.summaries[1]


def test_controller_waits_for_nobody(make_host):
    """The controller boots alone: it neither builds nor waits for the environment, and never starts slurmd."""
    host = make_host(role="controller")
    boot = host.boot(controller_listens=False)
    assert boot.exit_code == 0, boot.output
    assert boot.results["environment"]["outcome"] == "skipped"
    assert json.loads(host.read("opt/podwright/node.json"))["environment"].endswith(
        f"/environments/current-{platform.machine()}"
    )
    assert "systemctl restart slurmctld" in host.calls
    assert not any(call.startswith("systemctl") and call.endswith("start slurmd") for call in host.calls)


def test_root_runs_nothing_of_a_package(make_host, cloud):
    """The code that a wheel lets every Python start with (.pth) never runs as root; the environment is root's alone."""
    touch = "import os; os.system(f'touch /mnt/fsx/ran/as-{os.geteuid()}')\n"
    cloud.replace_lock(cloud.lock(make_wheel(cloud.index, "tinydep", version="1.0", pth=touch)))
    (cloud.shared / "ran").mkdir()
    (cloud.shared / "ran").chmod(0o1777)
    steps = [f"./on_create.sh --only {step}" for step in ("lustre", "runs", "environment")]
    show = f"find {cloud.environment.relative_to(cloud.shared)} ! -type l -printf 'owner %U:%G %M\\n' | sort -u"
    boot = make_host(patience=1).boot(f"{' && '.join(steps)} && cd /mnt/fsx && {show}")
    assert boot.exit_code == 0, boot.output
    assert [path.name for path in (cloud.shared / "ran").iterdir()] == ["as-1000"]
    uv = [line for line in boot.output.splitlines() if re.search(r" \$ .*/uv (venv|pip) ", line)]
    assert len(uv) == 5
    assert all(" $ setpriv --reuid=61183 " in line for line in uv), uv
    owners = {line for line in boot.output.splitlines() if line.startswith("owner ")}
    assert owners == {f"owner 0:0 {mode}" for mode in ("-rw-r--r--", "drwxr-xr-x")}
