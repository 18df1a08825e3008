"""The whole path, from cluster.yaml to a model Hugging Face loads, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from podwright import checkout
from podwright.deploy.terraform import find_terraform
from podwright_rehearsal.run.hosting import NamespacedHosts
from podwright_rehearsal.run.rehearsal import MAX_STEPS
from podwright_training.checkpoint import step_folder
from podwright_training.model import LlamaForCausalLM
from podwright_training.run_folder import RunFolder

pytestmark = [pytest.mark.rehearsal, pytest.mark.hosts, pytest.mark.terraform, pytest.mark.timeout(1800)]
PODWRIGHT = [sys.executable, "-m", "podwright.cli", "rehearse"]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PODWRIGHT, *arguments], cwd=checkout.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def lines_until(process: subprocess.Popen[str], **wanted: str) -> list[dict[str, Any]]:
    assert process.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if wanted.items() <= seen[-1].items():
            return seen
    pytest.fail(f"{wanted} never came; the last lines were {seen[-5:]}")


def test_an_interrupted_rehearsal_leaves_nothing() -> None:
    """SIGINT while the hosts boot ends every process, namespace and mount, and --clean finds nothing."""
    process = start("examples/minimal/cluster.yaml", "--json")
    lines_until(process, event="began", step="bootstrap")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    cleaned = subprocess.run([*PODWRIGHT, "--clean"], cwd=checkout.ROOT, capture_output=True, text=True, check=True)
    assert "nothing was left" in cleaned.stdout
    assert str(NamespacedHosts.folder) not in Path("/proc/mounts").read_text()


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


@pytest.fixture(scope="module")
def rehearsed() -> dict[str, Any]:
    """The summary of a rehearsal that ran to its end."""
    process = start("cluster.yaml", "--json")
    seen = lines_until(process, event="summary")
    process.communicate(timeout=300)
    assert process.returncode == 0
    return seen[-1]


@pytest.fixture(scope="module")
def run_folder(rehearsed: dict[str, Any]) -> RunFolder:
    """The run folder of that rehearsal."""
    assert rehearsed
    return RunFolder(NamespacedHosts.folder / "fsx" / "runs" / "rehearsal")


def test_a_rehearsal_goes_all_the_way(rehearsed: dict[str, Any]) -> None:
    """Terraform applies and then wants nothing, nodes are idle, a second boot changes nothing, nothing is left."""
    assert int(rehearsed["resources applied"]) > 20
    assert rehearsed["second plan"] == "No changes"
    assert rehearsed["nodes idle"] == "2 of 2"
    assert rehearsed["bootstrap again"] == "0 changes"
    assert {line.split()[0] for line in rehearsed["bootstrap steps, slowest host"].splitlines()} >= {"lustre", "slurm"}
    assert rehearsed["ranks"] == "4, 2 on each of 2 of 2 compute nodes"
    assert len(rehearsed["srun hostname"].split()) == 2
    assert "idle" in rehearsed["sinfo"]
    assert rehearsed["resources left"] == "0"


def test_training_survives_the_lost_host(run_folder: RunFolder) -> None:
    """The job started twice, went on from its newest checkpoint, and did every step."""
    first, second = run_folder.events("start")
    assert first["step"] == 0
    assert second["step"] > 0
    assert second["world_size"] == first["world_size"] == 4
    assert {event["step"] for event in run_folder.events("train")} == set(range(1, MAX_STEPS + 1))


def test_the_model_loads_and_agrees(run_folder: RunFolder) -> None:
    """Transformers loads the exported model, and its logits equal our own model's within 1e-5."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run_folder.hf, dtype=torch.float32).eval()
    newest = step_folder.newest(run_folder.checkpoints)
    assert newest is not None
    ours = LlamaForCausalLM(step_folder.model_config(newest)).eval()
    step_folder.load_weights(ours, newest)
    tokens_BT = torch.randint(0, theirs.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (theirs(tokens_BT).logits - ours(tokens_BT)).abs().max()
    assert difference < 1e-5
