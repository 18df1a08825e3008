"""``podwright move`` on rehearsed hosts: people, files, accounts, history and a training job change zone and region.

The real cdktf, Terraform and provider deploy; real Slurm, slurmdbd, MariaDB, sshd and the trainer run on the hosts.
Between the steps `cluster` and `accounts` the test boots the hosts of the new cluster, which SageMaker does on AWS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from podwright import checkout
from podwright.check.load import load
from podwright.operations.deployment.terraform import terraform_environment
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.deployment import Deployment
from podwright_rehearsal.run.hosting import HOST_VARIABLES
from podwright_rehearsal.run.supplies import SHARDS, dataset
from podwright_testing.boots import require_booted
from podwright_testing.metrics import logged
from podwright_testing.programs import started
from podwright_training.run_folder import RunFolder

pytestmark = [pytest.mark.rehearsal, pytest.mark.hosts, pytest.mark.terraform]

COMMAND_TIMEOUT_S, WAITS_S = 1200, 600.0  # of a busy machine
PYTHON, PACKAGES, TRAINER, COMMON = (
    "/opt/python",
    "/opt/packages",
    "/opt/training",
    "/opt/common",
)  # of this machine, on the hosts
ENVIRONMENT, RUN = "/fsx/scratch/environment", "/fsx/scratch/run"
MAX_STEPS = 4000
PAUSED_TRAINER = """\
if __name__ == "__main__":  # data workers import this file too
    import sys
    import time

    from podwright_training.__main__ import main
    from podwright_training.loop.metrics import Metrics

    write = Metrics.write

    def write_and_pause(self, event):
        write(self, event)
        if event.kind == "train":
            time.sleep(0.5)

    Metrics.write = write_and_pause
    sys.exit(main())
"""
SETTINGS = """\
# The team's cluster.
name: demo
region: us-west-2                      # where we began
network: {{source: create, availability_zone_id: usw2-az1}}
lustre:
  source: create                       # everything is here
bucket: {{source: create, on_destroy: destroy}}
role: {{source: create}}
cluster:
  instance_groups:
    - {{name: controller, role: controller, instance_type: ml.m5.xlarge, count: 1}}
    - {{name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 1, partition: gpu}}
training: {{source: none}}
nodes:
  groups:
    - {{name: research, gid: 3001}}
  users:
    - {{name: ada, uid: 2001, groups: [research], ssh_keys: ["{key}"]}}
    - {{name: grace, uid: 2002, ssh_keys: ["{key}"]}}
"""


@dataclass
class World:
    """An account in two regions, somebody who moves a cluster there, and the hosts of the cluster that runs."""

    folder: Path
    aws: AwsStandIn
    image: Path
    stack: ExitStack
    hosts: NamespacedCluster = field(init=False)
    shared: Path = field(init=False)  # the files of the cluster that runs
    file: str = "cluster.yaml"  # its settings
    starts: int = 1  # of the training job

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def environment(self) -> dict[str, str]:
        plugin = [str(self.hosts.session_plugin())] if hasattr(self, "hosts") else []
        roots = (".", "common", "constructs", "lifecycle_scripts", "stacks")
        return {
            **os.environ,
            **self.aws.environment(),
            **terraform_environment(self.folder / "terraform"),
            "HOME": str(self.folder / "home"),
            "PATH": os.pathsep.join([*plugin, str(Path(sys.executable).parent), str(checkout.BIN), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(str(checkout.ROOT / name) for name in roots),
            "NO_COLOR": "1",
        }

    def start(self, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return started(
            [sys.executable, "-m", "podwright", *words],
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def podwright(self, *words: str, status: int = 0) -> str:
        with self.start(*words) as process:
            output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == status, f"{words}: {process.returncode}\n{output}"
        return output

    def killed_at(self, step: str, *words: str) -> None:
        """Run a command and kill it when it has begun a step."""
        with self.start(*words) as process:
            assert process.stdout
            seen = []
            for line in process.stdout:
                seen.append(line)
                if line.startswith(f"{step}: "):
                    break
            else:
                pytest.fail(f"{step} did not begin: {seen}")
            process.kill()
            process.wait()

    def boot(self, file: str) -> None:
        """Boot hosts for the nodes of a deployed cluster; those of another cluster end."""
        settings = load(self.project / file)
        self.file = file
        region = _Region(self.aws, settings.region)
        place = self.folder / settings.name
        (place / "lifecycle").mkdir(parents=True)
        deployment = Deployment(
            config=self.project / file,
            settings=settings,
            aws=region,  # type: ignore[arg-type]
            project=self.folder / "synthesized",
            logs=place,
            on_line=lambda _: None,
        )
        tag = {"Key": "podwright:cluster", "Value": settings.name}
        (shared,) = (
            item for item in region.client("fsx").describe_file_systems()["FileSystems"] if tag in item["Tags"]
        )
        self.shared = self.folder / "storage" / shared["FileSystemId"]
        given = {**self.aws.environment(), "AWS_REGION": settings.region}
        packages = Path(torch.__file__).parents[1]
        self.hosts = NamespacedCluster(
            directory=place / "hosts",
            image=self.image,
            cluster_name=settings.name,
            cluster_arn=deployment.cluster_arn,
            subnet_cidr=deployment.subnet_cidr(),
            nodes=deployment.nodes(),
            shared=self.shared,
            relay=("127.0.0.1", int(self.aws.endpoint_url.rpartition(":")[2])),
            environment={**{name: given[name] for name in HOST_VARIABLES}, "PODWRIGHT_PATIENCE": "0.5"},
            binds=[
                (Path(sys.base_prefix), PYTHON),
                (packages, PACKAGES),
                (checkout.TRAINING, TRAINER),
                (checkout.COMMON, COMMON),
                (dataset(), "/opt/dataset"),
            ],
        )
        self.stack.callback(self.hosts.stop)
        self.hosts.start()
        require_booted(self.hosts.boot(deployment.download_lifecycle(place / "lifecycle"), timeout_s=600).values())
        self.hosts.wait_until_idle(timeout_s=WAITS_S)

    def root(self, line: str) -> str:
        return self.hosts.run(line, user="root").stdout

    def run_folder(self) -> RunFolder:
        return RunFolder(self.shared / "scratch" / "run")

    def ids(self, cluster: str, region: str) -> dict[str, str]:
        """Log in as each user by ssh, with the key, and return what ``id`` says there."""
        key = str(self.folder / "home" / "key")
        self.podwright("ssh-config", "--write", "--cluster", cluster, "--region", region, "--identity", key)
        config = self.folder / "home" / ".ssh" / "podwright" / f"{cluster}.config"
        return {
            user: subprocess.run(
                ["ssh", "-F", config, "-l", user, cluster, "id"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for user in ("ada", "grace")
        }


@dataclass
class _Region:
    """The stand-in as a deployment in one region uses it."""

    aws: AwsStandIn
    region: str

    def client(self, service: str) -> Any:
        return self.aws.client(service, region=self.region)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, node_image: Path) -> Iterator[World]:
    """A deployed and booted cluster with two people, accounts, a QOS, a job of the past and one that trains."""
    folder = tmp_path_factory.mktemp("move")
    (folder / "home").mkdir()
    (folder / "project").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "home" / "key"], check=True)
    key = (folder / "home" / "key.pub").read_text().strip()
    kit = json.loads((checkout.ROOT / "cdktf.json").read_text())
    kit["app"] = f"{sys.executable} {checkout.ROOT / 'main.py'}"
    (folder / "project" / "cdktf.json").write_text(json.dumps(kit))
    (folder / "project" / "cluster.yaml").write_text(SETTINGS.format(key=key))
    with (
        ExitStack() as stack,
        AwsStandIn(
            directory=folder / "aws",
            other_regions=["us-east-1"],
            storage=folder / "storage",
            transition_s=0.5,
            instant_deletion=True,
        ) as aws,
    ):
        made = World(folder, aws, node_image, stack)
        made.podwright("deploy", "--yes")
        made.boot("cluster.yaml")
        people(made)
        yield made


def people(world: World) -> None:
    """Give the cluster accounts, a QOS and a job of the past, and start one that trains."""
    world.root(
        "export PATH=/opt/slurm/bin:$PATH; set -e; sacctmgr -i add qos urgent priority=100 maxwall=2-00:00:00; "
        "sacctmgr -i add account lab description=lab organization=team; "
        "sacctmgr -i add user ada account=lab qos=normal,urgent defaultqos=urgent; "
        "sacctmgr -i add user grace account=lab; "
        "sacctmgr -i modify user ada,grace set defaultaccount=lab; mkdir -m 1777 -p /fsx/scratch"
    )
    world.hosts.run("srun --partition=gpu --job-name=past true", user="ada")
    world.hosts.run("echo precious > /fsx/scratch/data && chmod 640 /fsx/scratch/data", user="grace")
    for name, module in (("torchrun", "torch.distributed.run"), ("podwright-train", "podwright_training")):
        program = world.shared / "scratch" / "environment" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        python = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        variables = f"LD_LIBRARY_PATH={PYTHON}/lib PYTHONPATH={TRAINER}:{COMMON}:{PACKAGES} OMP_NUM_THREADS=1"
        program.write_text(f'#!/bin/bash\nexport {variables}\nexec {python} -m {module} "$@"\n')
        program.chmod(0o755)
    pause_after_steps(world.shared / "scratch" / "environment" / "bin")
    said = world.hosts.run(
        f"{ENVIRONMENT}/bin/podwright-train launch --run-dir={RUN} --environment={ENVIRONMENT} --nodes=1 "
        "--nproc-per-node=1 --partition=gpu --accelerator=cpu -- --preset=tiny --dataset=/opt/dataset "
        "--dataset-config-name=en --tokenizer=/opt/dataset/tokenizer --logging-freq=1 "
        f"--max-steps={MAX_STEPS} --checkpoint-freq={MAX_STEPS} --data-streams={SHARDS}",
        user="ada",
    ).stdout
    assert re.findall(r"submitted job (\d+)", said)
    trained(world)


def pause_after_steps(programs: Path) -> None:
    """Let the job pause after each step: it trains for as long as these tests last, and would keep a core busy."""
    (programs / "paused_trainer.py").write_text(PAUSED_TRAINER)
    torchrun = programs / "torchrun"
    line = torchrun.read_text().replace('"$@"', '"${@/#podwright_training/paused_trainer}"')
    torchrun.write_text(line.replace("PYTHONPATH=", f"PYTHONPATH={ENVIRONMENT}/bin:"))


def trained(world: World, *, steps: int = 3) -> None:
    """Wait until the job has taken steps since its last start."""

    def reached() -> bool:
        events = list(logged(world.run_folder()))
        begun = [number for number, event in enumerate(events) if event["event"] == "start"]
        return len(begun) == world.starts and sum(event["event"] == "train" for event in events[begun[-1] :]) >= steps

    log = world.run_folder().log
    wait_for(
        reached, timeout_s=WAITS_S, description=lambda: f"training\n{log.read_text()[-3000:] if log.exists() else ''}"
    )


def continued(world: World) -> None:
    """Check that every start went on at the step after the last one, with batches that no step had before."""
    events = list(logged(world.run_folder()))
    steps = [event["step"] for event in events if event["event"] == "train"]
    assert steps == list(range(1, len(steps) + 1))
    digests = [event["batch_digest"] for event in events if event["event"] == "train"]
    assert len(set(digests)) == len(digests)


def test_going_back_before_anything_is_new(world: World) -> None:
    """Held jobs go on where they were, at the step after their last one, and no backup is left."""
    world.podwright("move", "--zone", "usw2-az3", "--until", "hold", "--yes")
    status = world.podwright("move", "--status").splitlines()
    assert [line.split()[-1] for line in status[1:] if line.split()[0] != "-"] == ["first-backup", "hold"]
    assert world.root("squeue --noheader --format=%T").split() == ["PENDING"]
    refused = world.hosts.run("sbatch --partition=gpu --wrap=true", user="grace", check=False)
    assert refused.returncode != 0
    printed = world.podwright("move", "--back", "--yes")
    assert "demo starts jobs again in" in printed
    assert world.aws.client("fsx").describe_backups()["Backups"] == []
    assert not (world.project / "demo-usw2-az3.yaml").exists()
    world.starts += 1
    trained(world)
    continued(world)


def test_to_another_zone_killed_three_times(world: World) -> None:
    """Killed in the first backup, while jobs save, and while accounts load, a move goes on and loses nothing."""
    file, before = world.file, world.hosts
    world.killed_at("first-backup", "move", file, "--zone", "usw2-az2", "--yes")
    world.killed_at("hold", "move", file, "--yes")
    world.podwright("move", file, "--until", "cluster", "--yes")
    world.boot("demo-usw2-az2.yaml")
    before.stop()
    world.killed_at("accounts", "move", file, "--yes")
    world.podwright("move", file, "--yes")
    arrived(world, "demo-usw2-az2", "us-west-2")
    text = (world.project / "demo-usw2-az2.yaml").read_text()
    assert "# where we began" in text
    assert "availability_zone_id: usw2-az2" in text
    assert "demo: 0 left" in world.podwright("move", file, "--destroy-old", "--yes")


def test_to_another_region(world: World) -> None:
    """The cluster goes to another region by copies of its backups, and then the first region is empty."""
    file, before, name = world.file, world.hosts, load(world.project / world.file).name
    world.podwright("move", file, "--zone", "use1-az1", "--region", "us-east-1", "--until", "cluster", "--yes")
    world.boot("demo-use1-az1.yaml")
    before.stop()
    world.podwright("move", file, "--yes")
    arrived(world, "demo-use1-az1", "us-east-1")
    assert f"{name}: 0 left" in world.podwright("move", file, "--destroy-old", "--yes")
    left = world.aws.inventory()  # of the first region, and of roles and buckets, which have none
    assert [line for line in left if "demo-use1-az1" not in line] == []
    assert world.aws.client("fsx", region="us-east-1").describe_backups()["Backups"] == []


def arrived(world: World, cluster: str, region: str) -> None:
    """Check people, files, accounts, history and the job on the new cluster."""
    ids = world.ids(cluster, region)
    assert ids["ada"].startswith("uid=2001(ada) gid=2001(ada)")
    assert "3001(research)" in ids["ada"]
    assert ids["grace"].startswith("uid=2002(grace)")
    data = world.shared / "scratch" / "data"
    assert (data.read_text(), data.stat().st_uid, data.stat().st_mode & 0o777) == ("precious\n", 2002, 0o640)
    world.starts += 1
    trained(world)
    continued(world)
    columns = "--format=JobName,User,Account,QOS,State"
    past = world.root(f"sacct --allusers --starttime=2020-01-01 --noheader --parsable2 --allocations {columns}")
    assert "past|ada|lab|urgent|COMPLETED" in past
    assert "run|ada|lab|urgent|RUNNING" in past
    assert "No runaway jobs found" in world.root("sacctmgr show runawayjobs < /dev/null 2>&1 || true")
    users = world.root("sacctmgr --noheader --parsable2 show assoc format=account,user,qos,defaultqos")
    assert "lab|ada|normal,urgent|urgent" in users
