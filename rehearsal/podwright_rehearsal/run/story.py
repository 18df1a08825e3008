"""A rehearsal in plain words: a sentence for each step, the time it takes, and the files to open afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from podwright_training.run_folder import RunFolder

LAST = "wall_time"
USUAL = "3 to 4 minutes on two cores, and some more the first time, for downloads"

# What happens, and what it is on AWS.
SENTENCES: Mapping[str, str] = {
    "start AWS": "An empty AWS account starts as a process on this machine. On AWS: your own account.",
    "deploy": "cdktf and Terraform create network, file systems, roles and cluster. On AWS: the same command.",
    "plan again": "Terraform plans again and must find nothing to change. On AWS: how you see drift.",
    "start hosts": "Each node of the cluster becomes a host with a name and disk. On AWS: HyperPod starts instances.",
    "bootstrap": "The lifecycle scripts from the bucket set the hosts up. On AWS: HyperPod runs the same ones.",
    "bootstrap again": "They run a second time and must change nothing. On AWS: after a reboot or an update.",
    "environment": "The training program is installed from the bucket. On AWS: the lifecycle scripts do it on nodes.",
    "sinfo": "Slurm counts its nodes; all must be idle. On AWS: `sinfo` on the login node prints the same.",
    "submit": "A training job is queued. On AWS: `podwright submit run.yaml`.",
    "train": "Four ranks train a small model and save checkpoints. On AWS: one rank for each GPU, the same program.",
    "lose a host": "A host loses its power in mid-step. On AWS: a GPU fails, and HyperPod replaces the node.",
    "train on": "The job goes on from its last checkpoint, on the same data. On AWS: auto-resume, without you.",
    "consolidate": "The sharded checkpoint becomes one model. On AWS: `podwright-train consolidate`, the same files.",
    "evaluate": "transformers loads the model and must find the trainer's perplexity. On AWS: the same check.",
    "generate": "The model writes a few words; after 60 steps they make no sense. On AWS: yours do, in days.",
    "report": "The run's losses, speed and events become one page. On AWS: `podwright fetch` brings it.",
    "look back": "Slurm shows its nodes, and the job's two lives. On AWS: `podwright jobs` and `sacct`.",
    "destroy": "Terraform deletes everything; the account must be empty. On AWS: `podwright destroy` ends the bill.",
}


def remember(folder: Path, wall_time: str) -> None:
    """Keep how long a rehearsal took, for the next one."""
    (folder / LAST).write_text(wall_time, encoding="utf-8")


def before(folder: Path) -> str:
    """Return how long the rehearsal takes: as the last one here, or as usual."""
    record = folder / LAST
    return f"about {record.read_text(encoding='utf-8')}, as the last one here" if record.exists() else f"about {USUAL}"


def after(config: Path, run: RunFolder | None, logs: Path, *, is_example: bool) -> Iterator[tuple[str, str]]:
    """Yield the results, the files to open and the next commands; after an example, how to write your own file."""
    events = "set up, trained on, broken, repaired" if run else "set up"
    yield "you saw", f"a cluster deployed, {events} and destroyed"
    files = [f"{run.report / 'index.html'}  the report", f"{run.hf}  the model"] if run else []
    yield "open", "\n".join([*files, f"{logs}  the logs"])
    drawing = f"podwright explain {config} -o cluster.svg"
    init, live = "podwright init  # a cluster.yaml of your own", "podwright check --live  # ask your AWS account"
    then = init if is_example else live
    yield "next", "\n".join([f"{drawing}  # a drawing of it", then])
