"""A rehearsal that is interrupted, and one that fails; test_tutorial.py goes the whole path on the same hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwright import checkout
from podwright.operations.deployment.terraform import find_terraform
from podwright_rehearsal.run.hosting import Debian13Hosts
from podwright_testing.programs import started
from podwright_testing.unreachable import NODES

pytestmark = [pytest.mark.rehearsal, pytest.mark.hosts, pytest.mark.terraform]
PODWRIGHT = [sys.executable, "-m", "podwright.cli", "rehearse"]


def lines_until(process: subprocess.Popen[str], **wanted: str) -> list[dict[str, Any]]:
    assert process.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if wanted.items() <= seen[-1].items():
            return seen
    pytest.fail(f"{wanted} never came; the last lines were {seen[-5:]}")


def settings_file(folder: Path) -> Path:
    """Write a file with a state in S3, two controllers with a database, and all that hosts cannot reach."""
    content = yaml.safe_load((checkout.ROOT / "examples/minimal/cluster.yaml").read_text())
    content["cluster"]["instance_groups"][0]["count"] = 2
    subnets = {"use2-az1": "10.0.1.0/28", "use2-az2": "10.0.1.16/28"}
    content |= {"accounting": {"source": "create", "subnet_cidrs": subnets}, "training": {"source": "none"}}
    content["state"] = {"source": "s3", "bucket": "podwright-states-of-a-test"}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({**content, "nodes": NODES}))
    return path


def test_an_interrupted_rehearsal_leaves_nothing(tmp_path: Path) -> None:
    """SIGINT while hosts boot stops the step, ends every process, namespace and mount; --clean finds nothing.

    The hosts have booted once by then: what they cannot reach is left out, as the rehearsal says, and fails no boot.
    """
    command = [*PODWRIGHT, str(settings_file(tmp_path)), "--json"]
    with started(command, cwd=checkout.ROOT, stdout=subprocess.PIPE) as process:
        seen = lines_until(process, event="began", step="bootstrap again")
        process.send_signal(signal.SIGINT)
        rest = [json.loads(line) for line in process.stdout or ()]  # communicate() would lose what is buffered
        process.wait(timeout=600)
    left_out = re.findall(r"not rehearsed: ([\w.]+): ", "\n".join(it.get("line", "") for it in seen))
    assert left_out == ["accounting", *(f"nodes.{name}" for name in NODES), "training"]
    assert process.returncode == 130
    states = {it["name"]: it["state"] for it in [*seen, *rest] if it.get("event") == "ended"}
    assert states["bootstrap"] == "done"
    assert states["bootstrap again"] == "stopped"
    assert "failed" not in states.values()
    cleaned = subprocess.run([*PODWRIGHT, "--clean"], cwd=checkout.ROOT, capture_output=True, text=True, check=True)
    assert "no leftovers" in cleaned.stdout
    assert str(Debian13Hosts.folder) not in Path("/proc/mounts").read_text()


BROKEN_TERRAFORM = """#!/bin/sh
[ "$1" = version ] && exec {terraform} "$@"
echo "the moon is in the wrong house" >&2
exit 7
"""


def test_a_failing_step_says_where_and_why(tmp_path: Path) -> None:
    """A step that fails is named with its host, the last lines of its log and the path of the whole."""
    broken = tmp_path / "terraform"
    broken.write_text(BROKEN_TERRAFORM.format(terraform=find_terraform()))
    broken.chmod(0o755)
    environment = {**os.environ, "TERRAFORM_BINARY_NAME": str(broken)}
    answer = subprocess.run(
        [*PODWRIGHT, "cluster.yaml"], cwd=checkout.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert "step 'deploy' failed on this machine: cdktf deploy ended with exit code 1" in answer.stderr
    assert "the moon is in the wrong house" in answer.stderr
    log = Path(answer.stderr.rsplit("the whole log: ", 1)[1].strip())
    assert "the moon is in the wrong house" in log.read_text()
