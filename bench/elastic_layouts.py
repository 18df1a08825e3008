"""Take nodes from an elastic run and give them back, in several layouts; time recoveries, compare losses.

    python bench/elastic_layouts.py [--layouts data tensor pipeline] [--hurt power heartbeat network]

Smallest: python bench/elastic_layouts.py --layouts data --hurt power

Boots a rehearsed cluster (root, namespaces, real Slurm). In each layout a tiny model trains on four nodes. Nodes are
lost one after the other until two are left, and come back: four, three, two, four, and with a pipeline across two nodes
four, two, four. Each loss is one of ``--hurt`` in turn; the second is that of the leader. Prints the seconds from each
loss to the next finished step, the steps that were repeated, and the largest difference of a step's loss from a run on
one node that nothing disturbed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from podwright.checkout import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.hosts.permission import why_not
from podwright_rehearsal.run import supplies
from podwright_testing.elastic_cluster import ElasticCluster, difference

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {  # ranks of a node, options
    "data": (1, {}),
    "tensor": (2, {"tensor_parallel": 2}),
    "pipeline": (1, {"pipeline_parallel": 2, "tie_word_embeddings": False}),
}
STEPS, BETWEEN = 100_000, 5
FEWEST, MOST = 2, 4


def main() -> None:
    """Print the figures of each layout as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument(
        "--hurt",
        nargs="+",
        choices=["power", "processes", "network", "heartbeat"],
        default=["power", "heartbeat", "network"],
    )
    args = parser.parse_args()
    release, why = supplies.available_release(RELEASES["debian-13"])
    if release is None or (why := why_not()):
        sys.exit(f"no cluster can be rehearsed here: {why}")
    hurts = cycle(args.hurt)
    with (
        tempfile.TemporaryDirectory(prefix="elastic-layouts.") as scratch,
        ElasticCluster(Path(scratch) / "cluster", supplies.node_image(release)) as cluster,
    ):
        print(json.dumps({name: measure(cluster, name, hurts) for name in args.layouts}, indent=1))


def _is_later(run: Any, generation: int) -> bool:
    return bool(run.memberships()[-1]["generation"] > generation)


def measure(cluster: ElasticCluster, name: str, hurts: Any) -> dict[str, Any]:
    """Shrink and grow a run of one layout; return its figures."""
    ranks, options = LAYOUTS[name]
    options = {**options, "max_steps": STEPS, "checkpoint_freq": STEPS, "min_lr": 1e-3, "lr": 1e-3, "warmup": 0}
    run = cluster.launch(name, f"{FEWEST}-{MOST}", ranks=ranks, memory_checkpoint_freq=1, **options)
    run.wait_for_nodes(MOST)
    lost: list[str] = []
    recoveries: list[dict[str, Any]] = []
    while len(hosts := run.hosts) > FEWEST:
        run.wait_for_step(max(run.steps()) + BETWEEN)
        leads = len(recoveries) == 1
        victim, how, generation = hosts[0 if leads else -1], next(hurts), run.memberships()[-1]["generation"]
        began = time.time()
        cluster.cluster.kill(victim, how=how)
        took_s = run.next_step_after(began)
        run.wait(partial(_is_later, run, generation), "another generation")
        event = run.memberships()[-1]
        recoveries.append(
            {"how": how, "led": leads, "nodes": event["nodes"], "s": round(took_s, 2), "repeated": event["lost_steps"]}
        )
        lost.append(victim)
    for victim in lost:
        cluster.restore(victim)
    run.wait_for_nodes(MOST)
    run.wait_for_step(max(run.steps()) + BETWEEN)
    cluster.end_jobs()
    steps = run.steps()
    calm = cluster.launch(f"{name}-undisturbed", "1", ranks=max(ranks, options.get("pipeline_parallel", 1)), **{
        **options, "max_steps": max(steps)
    })  # fmt: skip
    calm.wait_for_end()
    return {
        "nodes": [event["nodes"] for event in run.memberships()],
        "steps": len(steps),
        "largest_difference_of_loss": difference(steps, calm.steps()),
        "recoveries": recoveries,
    }


if __name__ == "__main__":
    main()
