"""An elastic run on real Slurm, four nodes and a spare: it trains on when hosts fail and urgent jobs come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podwright_rehearsal.aws.stand_in import AwsStandIn
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_testing.elastic_cluster import ElasticCluster, ElasticRun, difference, lost
from podwright_testing.metrics import logged

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
STEPS, MEMORY_FREQ, MBIT_S = 400, 1, 20  # more steps than the test needs, at that speed
# At the usual 3e-3 this model multiplies any difference by ten every eight steps, rounding too. At 3e-4 four ranks
# differ from one by 1e-6 over all steps: what an elastic run got wrong would show.
OPTIONS = {"max_steps": STEPS, "checkpoint_freq": STEPS, "lr": 3e-4, "min_lr": 3e-5}
BUCKET = "runs"
ELASTIC = {**OPTIONS, "memory_checkpoint_freq": MEMORY_FREQ, "checkpoint_dir": f"s3://{BUCKET}/run"}
KILL_AGENT = "pkill -KILL -f '[p]ython.* join '"
URGENT = "sbatch --parsable --partition urgent --nodes 3 --exclusive --output /dev/null --wrap"
UNTIL_GO = "until [ -e /fsx/scratch/go ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def cluster(node_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticCluster]:
    """Five idle compute nodes, and a bucket."""
    directory = tmp_path_factory.mktemp("elastic")
    with AwsStandIn(directory=directory / "aws") as aws:
        aws.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws.region})
        with ElasticCluster(directory / "cluster", node_image, mbit_s=MBIT_S, aws=aws) as cluster:
            yield cluster


def loses(run: ElasticRun, cluster: ElasticCluster, host: str, how: str) -> None:
    """Lose a host: the run goes on from memory, at most as many steps back as it has between saves there."""
    before = run.memberships()[-1]
    run.wait_for_step(max(run.steps()) + 3)  # a run that grows saves on disk
    with lost(cluster, host, how) as at:
        run.next_step_after(at)
        run.wait(lambda: run.memberships()[-1]["generation"] > before["generation"], "another generation")
        event = run.memberships()[-1]
        assert f"the agent on {host}" in event["cause"], event
        assert event["lost_steps"] <= MEMORY_FREQ, event
        assert last_start(run)["resumed_from"].startswith("/dev/shm/"), event  # noqa: S108 - where it resumed from
        assert host not in event["hosts"]
    run.wait_for_nodes(4)


def last_start(run: ElasticRun) -> dict:
    return list(logged(run.folder, "start"))[-1]


def output(run: ElasticRun) -> str:
    return "".join(log.read_text() for log in run.folder.elastic.glob("host-*.log"))


def loses_an_agent(run: ElasticRun, cluster: ElasticCluster) -> None:
    """A process is killed, and nothing else: the run goes on at once, and Slurm queues that host's job again alone."""
    generation, hosts = run.memberships()[-1]["generation"], run.hosts
    host = cluster.host_of_last_task(run)
    host = host if host in hosts[1:] else hosts[-1]  # not the leader: its loss has another cause
    others = [other for other in hosts if other != host]
    before = [cluster.restarts(run, on=other) for other in others]
    cluster.cluster.run(KILL_AGENT, host=host, user="root")
    run.wait(lambda: run.memberships()[-1]["generation"] > generation, "another generation")
    event = next(event for event in run.memberships() if event["generation"] > generation)
    assert event["cause"] == f"the agent on {host} closed its connection"
    assert event["lost_steps"] <= MEMORY_FREQ
    run.wait(lambda: cluster.hosts_that_run(run) > 4, "the killed agent's job")
    assert [cluster.restarts(run, on=other) for other in others] == before
    run.wait_for_nodes(4)


def loses_two_partners(run: ElasticRun, cluster: ElasticCluster) -> None:
    """Both copies of one rank's state are gone: the run says so and goes on from the shared file system."""
    run.wait_for_step(max(run.steps()) + 3)
    one, other = run.hosts[1:3]
    with lost(cluster, one, "power") as at, lost(cluster, other, "power"):
        run.next_step_after(at)
        assert last_start(run)["resumed_from"].startswith("/fsx/")
        assert "in memory is incomplete: " in output(run)
        assert f"of {one}" in output(run)
    run.wait_for_nodes(4)


def gives_way(run: ElasticRun, cluster: ElasticCluster) -> None:
    """A job of higher priority takes three nodes: the run saves, shrinks, and grows again when that job has ended."""
    generation = run.memberships()[-1]["generation"]
    urgent = int(cluster.cluster.run(f"{URGENT} '{UNTIL_GO}'").stdout)
    cluster.cluster.wait_for_job(urgent, frozenset({"RUNNING"}))
    shrunk = run.wait_for_nodes(2, after=generation)
    run.wait_for_step(max(run.steps()) + 2)
    assert cluster.cluster.job(urgent)["JobState"] == "RUNNING", "both run"
    changes = [event for event in run.memberships() if generation < event["generation"] <= shrunk["generation"]]
    assert sum(event["lost_steps"] for event in changes) <= MEMORY_FREQ, changes
    (cluster.scratch / "go").touch()
    cluster.cluster.wait_for_job(urgent)
    run.wait_for_nodes(4, after=shrunk["generation"])


def loses_everything(run: ElasticRun, cluster: ElasticCluster) -> dict:
    """Every node's memory and the shared file system's folder are gone: another launch goes on from S3; its steps."""
    cluster.lose_everything(run)
    again = cluster.launch("again", "2-4", **ELASTIC)
    again.wait_for_nodes(4)
    step = next(logged(again.folder, "start"))["step"]  # on a busy machine, of three nodes: the fourth joins later
    again.wait_for_step(step + 2)
    assert f"step-{step:08} in {ELASTIC['checkpoint_dir']}: fetching that" in output(again)
    return again.steps()


def test_an_elastic_run_trains_the_same_model_whatever_happens(cluster: ElasticCluster) -> None:
    """Power, network, a hung leader, two partners or all at once, an urgent job: no step's sequences or loss differ.

    HyperPod's auto-resume leaves the run alone, and Slurm requeues the jobs of lost hosts and no others.
    """
    calm = cluster.launch("calm", "1", **OPTIONS)
    calm.wait_for_end()
    run = cluster.launch("run", "2-4", "--spares=1", **ELASTIC)
    run.wait_for_nodes(4)
    run.wait_for_step(5)
    with pytest.raises(HostError, match="was not started with srun --auto-resume=1"):
        cluster.auto_resume(run)
    leader = run.hosts[0]
    untouched = cluster.restarts(run, on=leader)
    loses(run, cluster, run.hosts[-1], "power")
    loses(run, cluster, run.hosts[-1], "network")
    assert cluster.restarts(run, on=leader) == untouched
    loses(run, cluster, run.hosts[0], "heartbeat")
    loses_an_agent(run, cluster)
    loses_two_partners(run, cluster)
    gives_way(run, cluster)
    steps = run.steps()
    steps |= loses_everything(run, cluster)
    cluster.end_jobs()
    assert difference(steps, calm.steps()) < 1e-5
