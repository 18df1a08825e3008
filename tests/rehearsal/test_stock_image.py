"""The lifecycle scripts on hosts that lack or do what AWS's stock image and agent lack and do."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from podwright_bootstrap.contract import ProvisioningParameters, TrainingPayload, WorkerGroup
from podwright_bootstrap.features import Containers, NodeFeatures, PamSlurmAdopt, Prolog
from podwright_bootstrap.steps import pam_slurm_adopt
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.profile import Profile
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.stock_image import (
    KERNEL,
    STOCK,
    UPDATER,
    WAITS_FOR_APT,
    metadata_service,
    updates,
)
from podwright_rehearsal.hosts import cgroups
from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.hosts.image import WHEELS
from podwright_rehearsal.hosts.metadata_service import LISTS_NOTHING
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.supplies import supplies
from podwright_testing.boots import require_booted
from podwright_testing.debians import unpacked
from podwright_testing.repository import PLACE, SOURCE, repository, source
from tests.bootstrap.conftest import make_wheel, sha256

pytestmark = pytest.mark.hosts
BUCKET = "sagemaker-demo"
NO_KEYS = "-u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY"
DOCKER = "/opt/rehearsal/docker"
DOCKER_PACKAGES = ("docker.io", "containerd", "runc", "libdevmapper1.02.1")
# Debian's packages with what a host in namespaces lacks switched off, and a runtime in place of NVIDIA's.
INSTALL_DOCKER = f"""
set -e
cd {DOCKER}
ln -s {DOCKER}/usr/bin/{{docker,containerd,ctr}}* /usr/bin/
ln -s {DOCKER}/usr/sbin/* /usr/sbin/
ln -s {DOCKER}/*lib/*-linux-gnu/libdevmapper* /usr/lib/*-linux-gnu/
cp lib/systemd/system/{{docker.service,docker.socket,containerd.service}} /etc/systemd/system/
groupadd --system docker
mkdir -p /etc/docker
echo '{{"iptables": false, "ip6tables": false, "ip-forward": false, "bridge": "none", "storage-driver": "vfs"}}' \
  >/etc/docker/daemon.json
printf '#!/bin/sh\necho called >>/run/nvidia-runtime\nexec runc "$@"\n' >/usr/bin/nvidia-container-runtime
chmod 755 /usr/bin/nvidia-container-runtime
systemctl daemon-reload
"""
RUN_A_CONTAINER = """
set -e
cd $(mktemp -d)
for file in /usr/bin/echo $(ldd /usr/bin/echo | grep --only-matching '/lib[^ ]*'); do install -D $file .$file; done
tar -c . | docker import - tiny >/dev/null
docker run --rm --network none --runtime nvidia tiny /usr/bin/echo hello
"""
# HyperPod resumes jobs with task/none only.
TASK_PLUGIN = "task/cgroup,task/affinity" if cgroups.version_1() else "task/affinity"
CONTROLLER, LOGIN, WORKER = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6"
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    region="us-west-2",
    controller_group="controller",
    login_group="login",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    nodes=NodeFeatures(prolog=Prolog()),
)


@pytest.fixture(scope="module")
def scripts(bundle: Callable[[ProvisioningParameters], Path]) -> Path:
    """The real lifecycle scripts of a cluster with a login group."""
    return bundle(PARAMETERS)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account with a bucket."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.2) as aws:
        aws.client("s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": PARAMETERS.region}
        )
        yield aws


@pytest.fixture(scope="session")
def docker() -> Path:
    """Debian's Docker, unpacked once."""
    return unpacked("docker", DOCKER_PACKAGES)


@pytest.fixture(scope="module")
def cluster(
    make_cluster: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    debian_13: Path,
    docker: Path,
    scripts: Path,
    aws: AwsStandIn,
) -> NamespacedCluster:
    """A cluster on a stock image that updates itself; its service confines tasks and leaves out login nodes."""
    account = aws.environment()
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    cluster = make_cluster(
        image=debian_13,
        nodes=[make_node(CONTROLLER, role="controller"), make_node(LOGIN, role="login"), make_node(WORKER)],
        relay=("127.0.0.1", int(aws.endpoint_url.rpartition(":")[2])),
        binds=[
            (supplies(RELEASES["debian-13"]).wheelhouse, WHEELS),
            (docker, DOCKER),
            (repository("compiler", debian_13, pam_slurm_adopt.BUILD_PACKAGES), PLACE),
        ],
        image_lacks=STOCK,
        image_has={**metadata_service(), **updates(debian_13)},
        profile=Profile(task_plugin=TASK_PLUGIN, lists_login_nodes=False),
        environment={"AWS_REGION": PARAMETERS.region, **{name: account[name] for name in names}},
    )
    cluster.start()

    def end_the_update(hostname: str, line: str) -> None:
        if WAITS_FOR_APT.search(line):
            cluster.run(f"systemctl stop {UPDATER}", host=hostname, user="root")

    require_booted(cluster.boot(scripts, on_line=end_the_update).values())
    cluster.wait_until_idle(timeout_s=600)
    return cluster


@pytest.fixture(scope="module")
def trains(
    cluster: NamespacedCluster,
    aws: AwsStandIn,
    bundle: Callable[[ProvisioningParameters], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> TrainingPayload:
    """A small training program in the bucket; /fsx/trains has the lifecycle scripts of a cluster that has it."""
    folder = tmp_path_factory.mktemp("bucket")
    wheel, lock = make_wheel(folder, "podwright_training"), folder / "requirements.lock"
    lock.write_text("# the program needs no package\n")
    for path in (wheel, lock):
        aws.client("s3").upload_file(str(path), BUCKET, path.name)
    wheel_uri, lock_uri = (f"s3://{BUCKET}/{path.name}" for path in (wheel, lock))
    payload = TrainingPayload(wheel_uri, sha256(wheel), lock_uri, sha256(lock))
    shutil.copytree(bundle(replace(PARAMETERS, training=payload)), cluster.directory / "fsx" / "trains")
    return payload


def boot_step(cluster: NamespacedCluster, step: str, *, variables: str = "") -> tuple[int, str]:
    """Run one step on the compute node; return its exit status and what it said."""
    line = f"env {variables} /fsx/trains/on_create.sh --only {step}"
    done = cluster.run(line, host=WORKER, user="root", check=False)
    return done.returncode, done.stdout


def test_the_image_lacks_what_it_should(cluster: NamespacedCluster) -> None:
    """Each part is gone from the host, so that the boot has shown that it needs none of them."""
    for line in ("python3 -m ensurepip --version", "pip --version", "ls /usr/lib/*/security/pam_slurm_adopt.so"):
        assert cluster.run(line, host=WORKER, user="root", check=False).returncode != 0, line


def test_an_image_without_the_pam_module_is_a_warning(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """The boot warns and goes on if logins are to be for jobs and the image has a Slurm of its own, without it."""
    features = replace(PARAMETERS.nodes, pam_slurm_adopt=PamSlurmAdopt())
    shutil.copytree(bundle(replace(PARAMETERS, nodes=features)), cluster.directory / "fsx" / "asks")
    for name, warnings in (("parameters", 0), ("pam_slurm_adopt", 1)):
        said = cluster.run(f"/fsx/asks/on_create.sh --only {name}", host=WORKER, user="root").stdout
        warned = [line for line in said.splitlines() if " WARNING on " in line]
        assert len(warned) == warnings, said
    assert "this image has no pam_slurm_adopt.so, and no /opt/slurm/lib*/libslurm.so" in warned[0]
    assert "users without a job may log in to this node" in warned[0]


def test_a_login_node_that_slurm_does_not_know_submits_jobs(cluster: NamespacedCluster) -> None:
    """Its users reach the compute node; slurm.conf has no line about it."""
    assert LOGIN not in cluster.run("sinfo --noheader --Node", user="root").stdout
    assert cluster.run("srun --partition gpu hostname", host=LOGIN).stdout.strip() == WORKER


def test_tasks_that_are_confined_cost_the_resume_only(cluster: NamespacedCluster) -> None:
    """The boot warns in one line that says what to do, and jobs run."""
    log = (cluster.directory / f"{CONTROLLER}-boot-1.log").read_text()
    warned = [line for line in log.splitlines() if f"TaskPlugin={TASK_PLUGIN}" in line]
    assert len(warned) == 1
    assert "TaskPlugin=task/none there changes that" in warned[0]
    assert cluster.run("srun --partition gpu hostname", host=LOGIN).stdout.strip() == WORKER


@pytest.mark.skipif(not cgroups.version_1(), reason="this machine's cgroups of version 1 lack what Slurm needs")
def test_a_job_keeps_to_its_cores_and_memory(cluster: NamespacedCluster) -> None:
    """A job sees the cores that it asked for, and one that takes more memory than that is killed."""
    assert cluster.run("srun --partition gpu --cpus-per-task 1 nproc", host=LOGIN).stdout.strip() == "1"
    greedy = "srun --partition gpu --mem 60 python3 -c 'bytearray(300 << 20)'"
    killed = cluster.run(greedy, host=LOGIN, check=False)
    assert killed.returncode != 0
    assert "OOM Killed" in killed.stderr


@pytest.mark.skipif(not cgroups.version_1(), reason="this machine's cgroups of version 1 lack what Slurm needs")
def test_a_login_is_part_of_the_users_job(
    cluster: NamespacedCluster, debian_13: Path, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """With pam_slurm_adopt a login needs a job, has its cores and memory alone, and ends with it.

    The boot builds the module from Slurm's own source, which nodes of the cluster have fetched, for a Slurm that no
    package has.
    """
    archive = source(debian_13, "slurmd")
    release = cluster.run("/opt/slurm/sbin/slurmd -V", host=WORKER).stdout.split()[-1].replace(".", "-")
    fetched = cluster.directory / "fsx" / ".cache" / "podwright"
    fetched.mkdir(parents=True, exist_ok=True)
    shutil.copy(archive, fetched / f"slurm-{release}-1.tar.gz")
    own = "ln -s /usr/lib/*-linux-gnu/libslurm.so.?? /opt/slurm/lib/libslurm.so"  # where Slurm's own build puts it
    apt = f"rm /etc/apt/sources.list.d/*; echo '{SOURCE.strip()}' >/etc/apt/sources.list"
    cluster.run(f"{own}; {apt}", host=WORKER, user="root")
    features = replace(PARAMETERS.nodes, pam_slurm_adopt=PamSlurmAdopt(admins=()))
    shutil.copytree(bundle(replace(PARAMETERS, nodes=features)), cluster.directory / "fsx" / "adopts")
    said = []
    for host, step in ((CONTROLLER, "slurm_conf"), (WORKER, "pam_slurm_adopt"), (WORKER, "pam_slurm_adopt")):
        cluster.run("/fsx/adopts/on_create.sh --only parameters", host=host, user="root")
        said.append(cluster.run(f"/fsx/adopts/on_create.sh --only {step}", host=host, user="root").stdout)
    assert "built /opt/slurm/lib/security/pam_slurm_adopt.so" in said[1], said[1]
    assert "1 steps, 0 changes" in said[2]
    cluster.wait_until_idle(timeout_s=600)
    ssh = f"ssh -o BatchMode=yes {WORKER}"
    refused = cluster.run(f"{ssh} true", host=LOGIN, check=False)
    assert refused.returncode != 0
    assert "you have no active jobs on this node" in refused.stderr

    batch = "sbatch --parsable --partition gpu --cpus-per-task 1 --mem 60 --chdir / --output /dev/null"
    job = int(cluster.run(f"{batch} --wrap 'exec sleep 1234'", host=LOGIN).stdout)
    # Slurm says RUNNING before the job's prolog; its batch script starts after the step that logins join.
    wait_for(
        lambda: not cluster.run("pgrep --full '[s]leep 1234'", host=WORKER, check=False).returncode,
        timeout_s=600,
        description=lambda: f"the script of job {job}",
    )
    groups = cluster.run(f"{ssh} 'nproc; cat /proc/self/cgroup'", host=LOGIN).stdout
    assert groups.splitlines()[0] == "1"
    assert len(re.findall(rf":(?:cpuset|memory|freezer):.*/job_{job}/step_extern", groups)) == 3, groups
    found = f"find /opt/rehearsal/cgroup/freezer -path '*/job_{job}/step_extern'"
    (freezer,) = cluster.run(found, host=WORKER, user="root").stdout.split()
    cluster.run(f"mount -t tmpfs -o ro none {freezer}", host=WORKER, user="root")  # no process joins the group
    outside = cluster.run(f"{ssh} cat /proc/self/cgroup", host=LOGIN, check=False)
    cluster.run(f"umount {freezer}", host=WORKER, user="root")
    assert outside.returncode != 0, outside.stdout
    greedy = cluster.run(f"{ssh} \"python3 -c 'bytearray(300 << 20)'\"", host=LOGIN, check=False)
    assert greedy.returncode in {137, 255}  # the program was killed, or sshd with it
    cluster.run(f"{ssh} 'setsid sleep 4321 >/dev/null 2>&1 & sleep 0.1'", host=LOGIN)
    cluster.run(f"scancel {job}", host=LOGIN)
    cluster.wait_for_job(job, timeout_s=600)
    cluster.wait_until_idle(timeout_s=600)
    assert cluster.run("pgrep --full '[s]leep 4321'", host=WORKER, user="root", check=False).stdout == ""


def test_containers_of_docker_are_on_the_local_disk(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """A real dockerd takes our settings beside the image's; the job user runs a container with NVIDIA's runtime."""
    cluster.run(["bash", "-c", INSTALL_DOCKER], host=WORKER, user="root")
    features = replace(PARAMETERS.nodes, containers=Containers(enroot=False, docker_for_job_user=True))
    shutil.copytree(bundle(replace(PARAMETERS, nodes=features)), cluster.directory / "fsx" / "containers")
    cluster.run("/fsx/containers/on_create.sh --only parameters", host=WORKER, user="root")
    summaries = [
        cluster.run("/fsx/containers/on_create.sh --only docker", host=WORKER, user="root").stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert "1 steps, 0 changes" in summaries[1], summaries
    assert cluster.run(["bash", "-c", RUN_A_CONTAINER], host=WORKER).stdout.strip() == "hello"
    assert "called" in cluster.run("cat /run/nvidia-runtime", host=WORKER, user="root").stdout
    shown = cluster.run("docker info --format '{{.DockerRootDir}} {{.Driver}}'", host=WORKER).stdout.split()
    assert shown == ["/opt/dlami/nvme/docker", "vfs"]
    kept = cluster.run("ls -d /opt/dlami/nvme/docker/vfs/dir/* /opt/dlami/nvme/containerd/*", host=WORKER, user="root")
    assert len(kept.stdout.splitlines()) > 2
    cluster.run("systemctl stop docker.socket docker containerd", host=WORKER, user="root")


@pytest.mark.parametrize("host", [CONTROLLER, LOGIN, WORKER])
def test_a_boot_waits_for_the_update_of_its_image(cluster: NamespacedCluster, host: str) -> None:
    """At first boot another program has apt's locks: the boot says which, waits, and then holds the kernel."""
    log = (cluster.directory / f"{host}-boot-1.log").read_text()
    assert len(WAITS_FOR_APT.findall(log)) == 1
    assert cluster.run("apt-mark showhold", host=host, user="root").stdout.split() == [KERNEL]


@pytest.mark.usefixtures("trains")
def test_an_update_that_does_not_end_costs_the_hold_only(cluster: NamespacedCluster) -> None:
    """The boot goes on with one warning, which names the program and says what to do."""
    cluster.run(f"apt-mark unhold {KERNEL}; systemctl start {UPDATER}", host=WORKER, user="root")
    status, said = boot_step(cluster, "held_packages", variables="PODWRIGHT_PATIENCE=0.005")
    cluster.run(f"systemctl stop {UPDATER}", host=WORKER, user="root")
    assert status == 0, said
    (warning,) = [line for line in said.splitlines() if " WARNING on " in line]
    assert re.search(r"waited 4 s for apt, which works for unattended-upgr \(process \d+\)", warning)
    assert "end that program if it hangs, then boot again" in warning


@pytest.mark.usefixtures("trains")
def test_metadata_names_instance_and_role(cluster: NamespacedCluster) -> None:
    """A node that trains finds instance, region and role in IMDSv2, which refuses who has no token."""
    assert "1 steps, 0 changes" in boot_step(cluster, "metadata")[1]
    listed = cluster.run(f"env {NO_KEYS} aws s3 ls s3://{BUCKET}", host=WORKER).stdout  # with the role's credentials
    assert "requirements.lock" in listed
    refused = "curl --silent --write-out %{http_code} http://169.254.169.254/latest/meta-data/instance-id"
    assert cluster.run(refused, host=WORKER).stdout == "401"


@pytest.mark.usefixtures("trains")
def test_metadata_that_lists_nothing_is_one_line(cluster: NamespacedCluster) -> None:
    """The boot warns that no role is named; the first step that needs one fails and says where to look."""
    cluster.run(f"touch {LISTS_NOTHING}", host=WORKER, user="root")
    impatient = f"{NO_KEYS} PODWRIGHT_PATIENCE=0.05"
    status, said = boot_step(cluster, "metadata", variables=impatient)
    assert status == 0, said
    (warning,) = [line for line in said.splitlines() if " WARNING on " in line]
    assert "waited 3 s for the instance's metadata to name a role" in warning
    status, said = boot_step(cluster, "environment", variables=impatient)
    cluster.run(f"rm {LISTS_NOTHING}", host=WORKER, user="root")
    assert status == 1, said
    (failure,) = [line for line in said.splitlines() if " FAILED on " in line]
    assert "Unable to locate credentials" in failure
    assert "look at the execution role of its instance group" in failure


def test_an_image_with_another_python_gets_its_own_environment(
    cluster: NamespacedCluster, trains: TrainingPayload
) -> None:
    """The complete environment of a Python that is gone stays for its jobs; commands find the new one."""
    environments = cluster.directory / "fsx" / "podwright" / "environments"
    wanted = trains.environment_name()
    older = environments / re.sub(r"-py[\d.]+-", "-py3.0-", wanted)
    (older / "bin").mkdir(parents=True)
    (older / "bin" / "python").symlink_to("/usr/bin/python3.0")
    (older / ".complete").touch()
    current = environments / f"current-{platform.machine()}"
    current.symlink_to(older.name)
    status, said = boot_step(cluster, "environment")
    assert status == 0, said
    assert current.readlink() == Path(wanted)
    imported = cluster.run(
        f"/fsx/podwright/environments/{current.name}/bin/python -c 'import podwright_training'", host=WORKER
    )
    assert imported.returncode == 0
    assert (older / ".complete").exists()
    assert {path.stat().st_uid for path in (environments / wanted).rglob("*")} == {0}


def test_what_the_agent_takes_away_comes_back(cluster: NamespacedCluster) -> None:
    """After the agent has rewritten slurm.conf, systemd's path unit puts our part back without anybody's doing."""

    def conf() -> str:
        return cluster.path(CONTROLLER, "/opt/slurm/etc/slurm.conf").read_text()

    before = conf()
    cluster.rewrite_slurm_conf()
    wait_for(lambda: conf() == before, timeout_s=600, description=lambda: f"our part of slurm.conf:\n{conf()[-500:]}")
    said = cluster.run("journalctl --no-pager --unit podwright-slurm-conf", user="root").stdout
    assert "slurm.conf" in said
