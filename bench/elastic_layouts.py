"""Take nodes from an elastic run and give them back, in several layouts; time recoveries, compare losses.

    python bench/elastic_layouts.py [--layouts data tensor pipeline] [--hurt power heartbeat network] [--times 4]

Smallest: python bench/elastic_layouts.py --layouts data --hurt power

Boots a rehearsed cluster (root, namespaces, real Slurm). In each layout a tiny model trains on four nodes. Nodes are
lost one after the other until two are left, and come back: four, three, two, four, and with a pipeline across two nodes
four, two, four. Each loss is one of ``--hurt`` in turn; the second is that of the leader. Prints the seconds from each
loss to the next finished step, the steps that were repeated, and the largest difference of a step's loss from a run on
one node that nothing disturbed.

With ``--times`` a run on four nodes and a spare then loses a node so often in each way, half of the time the leader's.
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
from statistics import median
from typing import Any

from podwright.checkout import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.run import supplies
from podwright_testing.elastic_cluster import ElasticCluster, ElasticRun, difference

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {  # ranks of a node, options
    "data": (1, {}),
    "tensor": (2, {"tensor_parallel": 2}),
    "pipeline": (1, {"pipeline_parallel": 2, "tie_word_embeddings": False}),
}
STEPS, BETWEEN = 100_000, 5
FEWEST, MOST = 2, 4
OPTIONS: dict[str, Any] = {"max_steps": STEPS, "checkpoint_freq": STEPS, "min_lr": 1e-3, "lr": 1e-3, "warmup": 0}


def main() -> None:
    """Print the figures of each layout as a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="*", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument(
        "--hurt",
        nargs="+",
        choices=["power", "processes", "network", "heartbeat"],
        default=["power", "heartbeat", "network"],
    )
    parser.add_argument("--times", type=int, default=0, help="losses of each kind with a spare. Default: 0")
    args = parser.parse_args()
    release, why = supplies.available_release(RELEASES["debian-13"])
    if release is None:
        sys.exit(f"no cluster can be rehearsed here: {why}")
    hurts = cycle(args.hurt)
    with (
        tempfile.TemporaryDirectory(prefix="elastic-layouts.") as scratch,
        ElasticCluster(Path(scratch) / "cluster", supplies.node_image(release)) as cluster,
    ):
        for name in args.layouts:
            print(json.dumps({name: measure(cluster, name, hurts)}, indent=1), flush=True)
        if args.times:
            print(json.dumps({"spare": repeat(cluster, args.hurt, args.times)}, indent=1))


def repeat(cluster: ElasticCluster, hurts: list[str], times: int) -> dict[str, Any]:
    """Lose a node so often in each way, with a spare; return the figures of each."""
    run = cluster.launch("spare", f"{FEWEST}-{MOST}", "--spares=1", memory_checkpoint_freq=1, **OPTIONS)
    recoveries = []
    for number in range(times):
        for how in hurts:
            run.wait_for_nodes(MOST)
            recoveries.append(lose(cluster, run, how, leader=number % 2 == 1))
            cluster.restore(recoveries[-1]["host"])
            run.wait(lambda: cluster.hosts_that_run(run) > MOST, "the spare")
    cluster.end_jobs()
    return {how: _summary([each for each in recoveries if each["how"] == how]) for how in hurts}


def _summary(recoveries: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [each["s"] for each in recoveries]
    repeated = max(each["repeated"] for each in recoveries)
    return {"median_s": median(seconds), "longest_s": max(seconds), "s": seconds, "most_repeated": repeated}


def lose(cluster: ElasticCluster, run: ElasticRun, how: Any, *, leader: bool) -> dict[str, Any]:
    """Lose a node some steps from now; return what its loss took."""
    run.wait_for_step(max(run.steps()) + BETWEEN)
    host, generation = run.hosts[0 if leader else -1], run.memberships()[-1]["generation"]
    began = time.time()
    cluster.cluster.kill(host, how=how)
    took_s = run.next_step_after(began)
    run.wait(partial(_is_later, run, generation), "another generation")
    event = run.memberships()[-1]
    return {
        "how": how,
        "host": host,
        "led": leader,
        "nodes": event["nodes"],
        "s": round(took_s, 2),
        "repeated": event["lost_steps"],
        **{name: value for name, value in event.items() if name.endswith("_s")},
    }


def _is_later(run: Any, generation: int) -> bool:
    return bool(run.memberships()[-1]["generation"] > generation)


def measure(cluster: ElasticCluster, name: str, hurts: Any) -> dict[str, Any]:
    """Shrink and grow a run of one layout; return its figures."""
    ranks, options = LAYOUTS[name]
    options = {**options, **OPTIONS}
    run = cluster.launch(name, f"{FEWEST}-{MOST}", ranks=ranks, memory_checkpoint_freq=1, **options)
    run.wait_for_nodes(MOST)
    lost: list[str] = []
    recoveries: list[dict[str, Any]] = []
    while len(run.hosts) > FEWEST:
        recoveries.append(lose(cluster, run, next(hurts), leader=len(recoveries) == 1))
        lost.append(recoveries[-1]["host"])
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
