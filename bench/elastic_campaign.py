"""Lose, freeze, cut off and starve hosts of one elastic run at random, until it ends by itself; then compare it.

    python bench/elastic_campaign.py [--faults 100] [--seed 0] [--steps 12] [--without]

Smallest: python bench/elastic_campaign.py --faults 1

Boots a rehearsed cluster of five compute nodes (root, namespaces, real Slurm) and trains a tiny model, four ranks and a
spare, once with the faults and once undisturbed on one node. Each fault is drawn from the seed: a kind, a host that
trains, and how many steps it comes after the last one is over. A host that was lost comes back, as HyperPod would
replace it. In the end every step must have the undisturbed run's sequences, and its loss to 1e-5: the learning rate is
so low that rounding alone, which differs with the number of nodes, stays below that. Prints how long each kind of fault
took until the next step, the steps that were lost, and the account of the run's time.

With ``--without`` the faults come to a run of a fixed number of nodes with `srun --auto-resume`, checkpoints on the
shared file system alone, and HyperPod's part done by the rehearsal; its waits end after ``--step-timeout`` seconds. A
rank that hangs is not replaced by HyperPod: its job fails, and is submitted again at once.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from podwright.checkout import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.run import supplies
from podwright_testing.elastic_cluster import ElasticCluster, ElasticRun, difference
from podwright_training.events import EndEvent, StartEvent
from podwright_training.report.history import History
from podwright_training.report.time_table import as_markdown

KILL, HANG, STOP, CUT, SLOW, DISK, MEMORY = "kill", "hang", "hang of a rank", "cut", "slow", "full disk", "full memory"
WEIGHTS = {KILL: 4, HANG: 2, STOP: 2, CUT: 3, SLOW: 2, DISK: 2, MEMORY: 2}
PASSING = (SLOW, DISK, MEMORY)  # the run should go on meanwhile
PASSING_S = 3.0
FEWEST, MOST = 2, 4
MBIT_S, SLOW_MBIT_S = 20, 5  # of each node: steps then take as long on any machine
TOLERANCE, LEARNING_RATE = 1e-5, 3e-4
STOP_A_RANK = "kill -STOP $(pgrep -P $(pgrep -f elastic.fork_server | head -n 1) | head -n 1)"
STOP_A_RANK_OF_TORCHRUN = "kill -STOP $(pgrep -f '[p]odwright_training train' | tail -n 1)"
FILL = "until mount -o remount,size=$(($(df --output=used -k /dev/shm | tail -n 1) + 4))k /dev/shm; do :; done"
EMPTY = "mount -o remount,size=50% /dev/shm"


@dataclass(frozen=True)
class Outcome:
    """A fault and what it cost."""

    kind: str
    host: str
    after_step: int
    next_step_s: float  # from the fault to the next finished step; of a passing fault 0
    lost_steps: int


class Campaign:
    """Faults of one run."""

    def __init__(
        self, cluster: ElasticCluster, run: ElasticRun, *, dice: random.Random, steps: int, elastic: bool
    ) -> None:
        self._cluster, self._run, self._dice, self._steps, self._elastic = cluster, run, dice, steps, elastic
        self._replaced = 0

    def strike(self) -> Outcome | None:
        """Wait for the step of a fault, let it happen, and undo it when training goes on. Return at the run's end."""
        step = max(self._run.steps(), default=0) + 1 + self._dice.randrange(self._steps // 2)
        self._run.wait(lambda: self._ended or (max(self._run.steps(), default=0) >= step and self._whole), "more steps")
        if self._ended:
            return None
        hosts = self._run.hosts if self._elastic else self._cluster.cluster.job_hosts(self._run.job)
        (kind,) = self._dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        host, step, began = self._dice.choice(hosts), max(self._run.steps()), time.time()
        with self._fault(kind, host):
            if kind in PASSING:
                time.sleep(PASSING_S)
                return Outcome(kind, host, step, 0.0, 0)
            if not self._elastic:
                self._resume(kind)
            took_s = self._run.next_step_after(began)
        resumed = list(self._run.folder.events_of(StartEvent))[-1].step
        return Outcome(kind, host, step, round(took_s, 2), max(0, step - resumed))

    @property
    def _ended(self) -> bool:
        return any(True for _ in self._run.folder.events_of(EndEvent))

    @property
    def _whole(self) -> bool:
        """Return whether the run can do without a host."""
        return not self._elastic or len(self._run.hosts) > FEWEST

    def _fault(self, kind: str, host: str) -> AbstractContextManager[None]:
        faults, elastic = self._cluster.faults, self._elastic
        return {
            KILL: lambda: self._lost(host),
            HANG: lambda: faults.hung(host) if elastic else self._replaced_after(host, "heartbeat"),
            CUT: lambda: faults.cut_off(host) if elastic else self._replaced_after(host, "network"),
            STOP: lambda: self._during(host, STOP_A_RANK if elastic else STOP_A_RANK_OF_TORCHRUN, "true"),
            SLOW: lambda: self._slow(host),
            DISK: lambda: faults.full_disk(host),
            MEMORY: lambda: self._during(host, FILL, EMPTY),
        }[kind]()

    @contextmanager
    def _lost(self, host: str) -> Iterator[None]:
        """Cut the power; in an elastic run the host comes back while the others train."""
        self._cluster.cluster.kill(host, how="power")
        yield
        if self._elastic:
            self._cluster.restore(host)

    @contextmanager
    def _slow(self, host: str) -> Iterator[None]:
        with self._cluster.faults.slow_network(host, mbit_s=SLOW_MBIT_S):
            yield
        self._cluster.limit_network(host)

    @contextmanager
    def _replaced_after(self, host: str, how: Any) -> Iterator[None]:
        self._cluster.cluster.kill(host, how=how)
        yield

    @contextmanager
    def _during(self, host: str, begin: str, end: str) -> Iterator[None]:
        self._cluster.cluster.run(begin, host=host, user="root")
        yield
        self._cluster.cluster.run(end, host=host, user="root", check=False)

    def _resume(self, kind: str) -> None:
        """Act as HyperPod for a run of a fixed number of nodes, or as the user whose job has failed."""
        if kind == STOP:
            self._cluster.cluster.wait_for_job(self._run.job)
            self._run.submit_again()
        else:
            self._replaced += 1
            new = f"i-campaign-{self._replaced}"
            self._cluster.cluster.auto_resume(
                self._run.job, lifecycle=self._cluster.lifecycle, new_instance_id=lambda _: new
            )


def main() -> None:
    """Run the campaign; print each fault, then the table, as Markdown and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12, help="of the run, for each fault. Default: 12")
    parser.add_argument("--without", action="store_true", help="a run of a fixed number of nodes instead")
    parser.add_argument("--step-timeout", type=int, default=600, help="of the run, in seconds. Default: 600")
    args = parser.parse_args()
    release, why = supplies.available_release(RELEASES["debian-13"])
    if release is None:
        sys.exit(f"no cluster can be rehearsed here: {why}")
    with (
        tempfile.TemporaryDirectory(prefix="elastic-campaign.") as scratch,
        ElasticCluster(Path(scratch) / "cluster", supplies.node_image(release), mbit_s=MBIT_S) as cluster,
    ):
        result = campaign(cluster, args)
    print(json.dumps(result, indent=1))
    if result["faults"] < args.faults:
        sys.exit(f"the run ended after {result['faults']} faults; give it more --steps")
    if result["largest_difference_of_loss"] > TOLERANCE:
        sys.exit(f"the loss differs by more than {TOLERANCE}")


def campaign(cluster: ElasticCluster, args: argparse.Namespace) -> dict[str, Any]:
    """Train disturbed and undisturbed; return the figures."""
    options = {
        "max_steps": args.faults * args.steps,
        "checkpoint_freq": args.steps,
        "memory_checkpoint_freq": None if args.without else 1,
        "step_timeout_s": args.step_timeout,
        "lr": LEARNING_RATE,
        "min_lr": LEARNING_RATE,
        "warmup": 0,
    }
    nodes, *flags = (str(MOST), "--auto-resume") if args.without else (f"{FEWEST}-{MOST}", "--spares=1")
    run = cluster.launch("disturbed", nodes, *flags, **options)
    dice = random.Random(args.seed)  # noqa: S311 - not for secrets
    faults = Campaign(cluster, run, dice=dice, steps=args.steps, elastic=not args.without)
    run.wait_for_step(1) if args.without else run.wait_for_nodes(MOST)
    outcomes = []
    for number in range(1, args.faults + 1):
        if (outcome := faults.strike()) is None:
            break
        outcomes.append(outcome)
        print(number, outcome, file=sys.stderr, flush=True)
    run.wait_for_end()
    calm = cluster.launch(
        "undisturbed", "1", **{**options, "memory_checkpoint_freq": None, "checkpoint_freq": options["max_steps"]}
    )
    calm.wait_for_end()
    print(as_markdown([History.of(calm.folder), History.of(run.folder)], usd_per_hour=None), file=sys.stderr)
    return {
        "faults": len(outcomes),
        "steps": len(run.steps()),
        "generations": len(run.memberships()),
        "largest_difference_of_loss": difference(run.steps(), calm.steps()),
        "kinds": {kind: _of_kind([each for each in outcomes if each.kind == kind]) for kind in WEIGHTS},
        "outcomes": [asdict(each) for each in outcomes],
    }


def _of_kind(outcomes: list[Outcome]) -> dict[str, Any]:
    if not outcomes:
        return {"times": 0}
    seconds = [each.next_step_s for each in outcomes]
    return {
        "times": len(outcomes),
        "median_s": median(seconds),
        "longest_s": max(seconds),
        "most_lost_steps": max(each.lost_steps for each in outcomes),
    }


if __name__ == "__main__":
    main()
