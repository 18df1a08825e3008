"""Real Slurm with the lifecycle scripts' own prolog and epilog: sick nodes are drained, jobs leave nothing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podwright.operations.moving.controller import packed
from podwright_bootstrap.contract import InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import (
    Containers,
    Health,
    Limits,
    LustreClient,
    NodeFeatures,
    Observability,
    Prolog,
    Remediation,
    Scratch,
    User,
)
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.description import File
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted
from podwright_testing.debians import unpacked
from podwright_testing.host_limits import disk_usage_bytes, resize_disk

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
ATTACK = Path(__file__).with_name("attack.sh")
IN_SERVICE = {"idle", "mixed", "allocated", "completing", "planned"}  # planned: kept for a job that waits for more
# Reads its settings, and makes folders, as Enroot does before each command.
ENROOT = """#!/bin/bash
set -eu
while IFS=$' \\t=' read -r key value; do
  if [[ $key =~ ^ENROOT_[[:upper:]_]+$ ]]; then export "$key=$(eval echo "$value")"; fi
done </etc/enroot/enroot.conf
folders=("$ENROOT_CACHE_PATH" "$ENROOT_DATA_PATH" "$ENROOT_RUNTIME_PATH")
(umask 077 && mkdir -p "${folders[@]}")
if [[ $1 == import ]]; then
  mktemp -d -p "$ENROOT_TEMP_PATH" enroot.XXXXXXXXXX >/dev/null
  stat --format='%U %a' "${folders[@]}" "$ENROOT_TEMP_PATH"
fi
"""
# An older boot made Enroot's folders like /tmp, and Mallory was there before Ada.
PLANT = """
set -e
mkdir --mode 777 /run/enroot/user-2001
ln -s /etc /opt/dlami/nvme/enroot/data/user-2001
touch /opt/dlami/nvme/enroot/temporary/user-2001
"""
AGAIN = """
enroot import x
for parent in /run/enroot /fsx/podwright/enroot /opt/dlami/nvme/enroot/{data,temporary}; do
  mkdir $parent/user-2003 && echo "LEAK mkdir in $parent"
  mv $parent/user-2001 $parent/mine && echo "LEAK mv in $parent"
  mv $parent/user-2002 $parent/user-2003 && echo "LEAK mv of mine in $parent"
  ls $parent/user-2001 && echo "LEAK ls in $parent"
done 2>/dev/null
mv /opt/dlami/nvme/enroot /opt/dlami/nvme/mine 2>/dev/null && echo LEAK mv
true
"""
# What a root shell, or a reader of Slurm's lines, would take for more than a name.
CRAFTED = shlex.quote("x$(touch /tmp/owned)`touch /tmp/owned`; touch /tmp/owned\nJobId=1 JobState=RUNNING BatchFlag=1")
# A process that is a new one each millisecond, whose parent is always gone.
SWIFT = """
import os, time
until = time.time() + 600
while time.time() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""
LINGERING = "/var/lib/systemd/linger/ubuntu"
# Debian's cron, with a line from before crontab was root's alone, and a service of the user's own manager, which passes
# itself off as a login. libpam-systemd, which hosts lack, sets the manager's variable.
START_SERVICES = """
set -e
ln -s /opt/rehearsal/cron/usr/sbin/cron /usr/sbin/
ln -s /opt/rehearsal/cron/usr/bin/crontab /usr/bin/
cp /opt/rehearsal/cron/lib/systemd/system/cron.service /etc/systemd/system/
mkdir -p /var/spool/cron/crontabs /etc/systemd/system/user@.service.d ~ubuntu/.config/systemd/user/default.target.wants
cd /var/spool/cron/crontabs
echo "@reboot exec bash -c 'exec -a left-cron sleep 3600'" >ubuntu
chmod 600 ubuntu
printf '[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%%i\n' >/etc/systemd/system/user@.service.d/variable.conf
cd ~ubuntu/.config/systemd/user
printf '[Service]\nExecStart=bash -c "exec -a left-lingering sleep 3600"\n' >session-1.service
ln -s ../session-1.service default.target.wants/
chown -R ubuntu: ~ubuntu/.config /var/spool/cron/crontabs/ubuntu
systemctl daemon-reload
systemctl start cron
systemd-run --quiet --wait loginctl enable-linger ubuntu  # logind answers nobody from outside of its control groups
"""
MEASURE = """
from pathlib import Path
from podwright_bootstrap.collectors.__main__ import measure
measure(["training", "slurm"], Path("/root"))
"""
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    controller_group="controller",
    worker_groups=[WorkerGroup(instance_group_name="workers", partition_name="gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    instance_facts={
        "workers": InstanceFacts(
            accelerator="gpu",
            accelerators_per_node=2,
            accelerator_name="A10G",
            efa_interfaces=1,
            vcpus=96,
            memory_gib=192,
            nvme_disks=1,
        )
    },
    nodes=NodeFeatures(
        users=(User("ada", 2001), User("mallory", 2002)),
        lustre_client=LustreClient(),
        health=Health(),
        limits=Limits(),
        scratch=Scratch(),
        prolog=Prolog(),
        # Tests start it themselves. On a busy machine five minutes end while a node lacks the GPU that a test took.
        remediation=Remediation(interval_minutes=60, max_percent=50, jobs=True),
        observability=Observability(),
        skip=("observability", "dcgm"),  # what they measure is in tests/bootstrap; the prolog goes by the feature
    ),
)


@pytest.fixture(scope="module")
def lifecycle(bundle: Callable[[ProvisioningParameters], Path]) -> Path:
    """The product's scripts with every feature of the machine turned on."""
    return bundle(PARAMETERS)


@pytest.fixture(scope="module")
def cluster(booted: Callable[..., NamespacedCluster], lifecycle: Path) -> NamespacedCluster:
    """A cluster of a controller and two nodes with two accelerators each."""
    programs = {"enroot": ENROOT, "nvidia-container-cli": "#!/bin/sh\n"}
    has = {f"/usr/bin/{name}": File(text, mode=0o755) for name, text in programs.items()}
    binds = [(unpacked("cron", ("cron",)), "/opt/rehearsal/cron")]
    return booted(lifecycle, environment={"AWS_EC2_METADATA_DISABLED": "true"}, image_has=has, binds=binds)


def boot(cluster: NamespacedCluster, lifecycle: Path) -> str:
    """Boot all hosts; the last lines of all logs."""
    results = cluster.boot(lifecycle, timeout_s=600)
    require_booted(results.values())
    return "\n".join(result.log.read_text() for result in results.values())


def submit(cluster: NamespacedCluster, script: str, *options: str) -> int:
    """Queue a job whose output lands in the shared file system."""
    folder = cluster.directory / "fsx" / "runs"
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    words = ["sbatch", "--parsable", "--output=/fsx/runs/%j.log", *options, "/fsx/runs/job.sh"]
    return int(cluster.run(words).stdout)


def said(cluster: NamespacedCluster, job_id: int) -> str:
    """Return the output of a job."""
    return (cluster.directory / f"fsx/runs/{job_id}.log").read_text()


def test_a_second_boot_changes_nothing(cluster: NamespacedCluster, lifecycle: Path) -> None:
    """With every feature on, lifecycle scripts that run again say 0 changes on every host."""
    log = boot(cluster, lifecycle)
    assert log.count(", 0 changes, ") == 3, log
    assert "Prolog" in cluster.run("scontrol show config | grep podwright-prolog.sh").stdout
    for host, daemon in ((CONTROLLER, "slurmctld"), (FIRST, "slurmd")):
        journal = cluster.run(f"journalctl --no-pager --unit {daemon}", host=host, user="root").stdout
        assert not re.search("specified more than once|must be at least", journal), journal


def test_a_job_is_noted_at_its_gpus_while_it_runs(cluster: NamespacedCluster) -> None:
    """From the prolog to the epilog the file of each GPU of a job has its id, from which metrics take a label."""
    noted = "/run/podwright-gpu-jobs"
    command = f"head -v -n 5 {noted}/*; echo id $SLURM_JOB_ID"
    job_id = submit(cluster, command, "--gres=gpu:2", "--wait", f"--nodelist={SECOND}")
    assert said(cluster, job_id).split() == [
        *("==>", f"{noted}/0", "<==", str(job_id), "==>", f"{noted}/1", "<==", str(job_id), "id", str(job_id))
    ]
    wait_for(
        lambda: not cluster.run(f"ls {noted}", host=SECOND, user="root").stdout,
        timeout_s=600,
        description=lambda: "the epilog to forget the job",
    )


def test_disks_that_a_reboot_empties_are_ready_before_jobs(cluster: NamespacedCluster) -> None:
    """After a reboot the NVMe disks are empty; systemd makes the jobs' folder on them before it starts slurmd."""
    cluster.run("touch /opt/dlami/nvme/old", host=SECOND, user="root")
    cluster.reboot(SECOND)
    cluster.wait_until_idle([SECOND], timeout_s=600)
    assert not cluster.path(SECOND, "/opt/dlami/nvme/old").exists()
    script = "findmnt --noheadings --output TARGET --target $(realpath /scratch/jobs/$SLURM_JOB_ID)"
    job = submit(cluster, script, "--nodelist", SECOND)
    assert cluster.wait_for_job(job, timeout_s=600)["JobState"] == "COMPLETED"
    assert said(cluster, job).split() == ["/opt/dlami/nvme"]


def test_a_job_has_its_own_folder_and_leaves_nothing(cluster: NamespacedCluster) -> None:
    """A job's scratch folder is its user's alone; hidden and swift daemons, cron's and lingering ones go, and files.

    Of cron and the user's service manager the real programs run.
    """
    script = f"""
        stat --format='%U %a' /scratch/jobs/$SLURM_JOB_ID
        echo x >/scratch/jobs/$SLURM_JOB_ID/file && touch /dev/shm/left $'/tmp/-left\\nlines' /var/tmp/left
        setsid bash -c 'exec -a left-behind sleep 3600' >/dev/null 2>&1 &
        setsid env -i bash -c 'exec -a left-hidden sleep 3600' >/dev/null 2>&1 &
        (exec -a left-swift env -i python3 -c {shlex.quote(SWIFT)}) >/dev/null 2>&1 &
        until [[ $(pgrep --count --full '^left-|^python3 -c') -ge 5 ]]; do sleep 0.1; done
    """
    cluster.run(["bash", "-c", START_SERVICES], host=FIRST, user="root")
    assert "not allowed to use this program" in cluster.run("crontab -l", host=FIRST, check=False).stderr
    job = submit(cluster, script, "--nodelist", FIRST)
    assert cluster.wait_for_job(job, timeout_s=600)["JobState"] == "COMPLETED"
    assert said(cluster, job).splitlines() == ["ubuntu 700"]
    look = f"ls -d /scratch/jobs/{job} /dev/shm/left /tmp/-left* /var/tmp/left {LINGERING}; pgrep --uid ubuntu"

    def is_clean() -> bool:
        return not cluster.run(look, host=FIRST, user="root", check=False).stdout

    wait_for(
        is_clean, timeout_s=600, description=lambda: cluster.run(look, host=FIRST, user="root", check=False).stdout
    )


def test_a_full_root_volume_drains_no_node(cluster: NamespacedCluster) -> None:
    """While a user's job has filled / and /tmp, which is on it as on AWS's image, other users' jobs start there."""
    on_root = "umount /tmp /var/tmp && chmod 1777 /tmp /var/tmp"
    cluster.run(on_root, host=SECOND, user="root")
    resize_disk(cluster.fabric, SECOND, f"{(disk_usage_bytes(cluster.fabric, SECOND) >> 20) + 16}m")
    full = submit(cluster, "cat /dev/zero >/tmp/full; echo full; sleep 3600", f"--nodelist={SECOND}")
    log = cluster.directory / f"fsx/runs/{full}.log"
    wait_for(
        lambda: log.exists() and "full" in log.read_text().split(), timeout_s=600, description=lambda: "a full disk"
    )
    for _ in range(2):
        batch = f"sbatch --wait --output=/dev/null --nodelist={SECOND} --chdir=/ --wrap hostname"
        cluster.run(batch, user="ada", timeout_s=600)
        step = f"srun --nodelist={SECOND} --chdir=/ hostname"
        assert cluster.run(step, user="ada", timeout_s=600).stdout.strip() == SECOND
    cluster.run(f"scancel {full}")
    cluster.wait_until_idle([SECOND], timeout_s=600)
    assert not cluster.run("ls /tmp/full", host=SECOND, user="root", check=False).stdout
    resize_disk(cluster.fabric, SECOND, "50%")


def test_another_job_of_the_user_goes_on(cluster: NamespacedCluster) -> None:
    """The end of one job touches neither processes nor shared memory of the user's other job on the node."""
    other = submit(cluster, "echo x >/dev/shm/other; sleep 3600", "--nodelist", FIRST)
    wait_for(
        lambda: cluster.run("ls /dev/shm/other", host=FIRST, user="root", check=False).returncode == 0,
        timeout_s=600,
        description=lambda: f"job {other} to write; it is {cluster.job(other)['JobState']}",
    )
    job = submit(cluster, "true", "--nodelist", FIRST)
    cluster.wait_for_job(job, timeout_s=600)
    cluster.wait_for_job(other, frozenset({"RUNNING"}), timeout_s=600)
    assert cluster.run("ls /dev/shm/other", host=FIRST, user="root").stdout
    cluster.run(f"scancel {other}")
    cluster.wait_for_job(other, timeout_s=600)


def test_environments_that_no_job_uses_are_removed(cluster: NamespacedCluster) -> None:
    """A week after it was replaced an environment goes, unless a job's script names it; links lead nowhere else."""
    folder = "/fsx/podwright/environments"
    make = f"""
        for name in aaaa bbbb cccc; do mkdir -p {folder}/$name; touch {folder}/$name/.complete; done
        mkdir -p {folder}/unfinished
        ln -sfn cccc {folder}/current-x86_64; touch -h -d '{{age}} days ago' {folder}/current-x86_64
    """
    clean = f"""
        PATH=/opt/slurm/bin:$PATH PYTHONPATH=/opt/podwright/lib python3 -m podwright_bootstrap.software.old_environments
        ls {folder}
    """

    def kept(age: int) -> list[str]:
        cluster.run(make.format(age=age), host=CONTROLLER, user="root")
        listed = cluster.run(clean, host=CONTROLLER, user="root").stdout.splitlines()
        return [line for line in listed if " " not in line]

    job = submit(cluster, f"sleep 3600; {folder}/aaaa/bin/torchrun", "--nodelist", FIRST)
    assert kept(6) == ["aaaa", "bbbb", "cccc", "current-x86_64", "unfinished"]
    assert kept(8) == ["aaaa", "cccc", "current-x86_64", "unfinished"]
    cluster.run(f"scancel {job}")
    cluster.wait_for_job(job, timeout_s=600)
    assert kept(8) == ["cccc", "current-x86_64", "unfinished"]


def test_an_ordinary_user_takes_no_node_down(cluster: NamespacedCluster, lifecycle: Path) -> None:
    """After all of attack.sh nothing has leaked, every host boots, no node is drained and another user's job runs."""
    kept = "stat --format='%n %u %g %a' /etc /etc/passwd /etc/shadow; sha256sum /etc/passwd"
    before = cluster.run(kept, host=FIRST, user="root").stdout
    shutil.copy(ATTACK, cluster.directory / "fsx" / "runs" / "attack.sh")
    following = submit(cluster, "true", "--nodelist", FIRST) + 2  # after the attack's own
    named = f"--job-name={CRAFTED} --comment={CRAFTED}"
    attack = f"srun {named} --nodelist={FIRST} --chdir=/tmp bash /fsx/runs/attack.sh {following}"
    said_by_it = cluster.run(attack, user="mallory", timeout_s=600).stdout
    assert said_by_it.splitlines() == ["DONE"]
    left = "pgrep --uid mallory; cat /proc/sysvipc/{shm,msg,sem} | grep 2002; find /run/lock -user mallory"
    wait_for(
        lambda: not cluster.run(["bash", "-c", left], host=FIRST, user="root", check=False).stdout,
        timeout_s=600,
        description=lambda: cluster.run(["bash", "-c", left], host=FIRST, user="root", check=False).stdout,
    )

    record = ["python3", "-c", packed("moved_jobs"), "close", "/root/move"]
    cluster.run(record, host=CONTROLLER, user="root")
    waiting = json.loads(cluster.path(CONTROLLER, "/root/move/jobs.json").read_text())["jobs"]
    assert {item["fields"]["userid"] for item in waiting} == {"2002"}
    cluster.run([*record[:3], "reopen", "/root/move"], host=CONTROLLER, user="root")
    cluster.run("scancel --user=mallory", user="root")

    log = boot(cluster, lifecycle)
    cluster.run(f"cd /opt/podwright/lib && python3 -c {shlex.quote(MEASURE)}", user="root")
    metrics = cluster.path(CONTROLLER, "/root/podwright.prom").read_text().splitlines()
    assert any("podwright_training_step" in line and "node_load1" in line for line in metrics)
    wrong = [line for line in metrics if not re.fullmatch(r"#.*|podwright_\w+(\{.*\})? \S+", line)]
    assert wrong == []
    assert not cluster.run(
        "ls /fsx/runs/owned /tmp/owned /fsx/runs/evil/by-0", host=FIRST, user="root", check=False
    ).stdout

    assert "warning: mallory's home" in log
    assert cluster.run(kept, host=FIRST, user="root").stdout == before
    look = "stat --format=%U:%a /scratch/jobs/$SLURM_JOB_ID"
    answer = cluster.run(f"srun --nodelist={FIRST} --chdir=/tmp sh -c '{look}'", user="ada", timeout_s=600)
    assert answer.stdout.strip() == "ada:700"
    assert set(cluster.node_states().values()) <= IN_SERVICE


def in_job(cluster: NamespacedCluster, user: str, script: str) -> list[str]:
    """Return the lines that a script prints in a job of a user's on the first node."""
    words = ["srun", f"--nodelist={FIRST}", "--chdir=/tmp", "bash", "-c", script]
    return cluster.run(words, user=user, timeout_s=600).stdout.splitlines()


def test_nobody_makes_the_folders_of_another_users_containers(
    cluster: NamespacedCluster, bundle: Callable[..., Path]
) -> None:
    """Mallory's folders and links are moved aside, and each user of jobs and logins has folders of their own."""
    old = "mkdir -p -m 1777 /run/enroot /opt/dlami/nvme/enroot && cd /opt/dlami/nvme/enroot && mkdir -m 1777 cache data"
    plugin = "mkdir -p /opt/slurm/lib/slurm && touch /opt/slurm/lib/slurm/spank_pyxis.so"
    cluster.run(f"{old} temporary && {plugin}", host=FIRST, user="root")
    in_job(cluster, "mallory", PLANT)
    scripts = cluster.directory / "fsx" / "containers"
    containers = Containers(docker=False, shared_cache=True)
    shutil.move(bundle(replace(PARAMETERS, nodes=replace(PARAMETERS.nodes, containers=containers))), scripts)
    for step in ("parameters", "enroot", "prolog"):
        cluster.run(f"/fsx/containers/on_create.sh --only {step}", host=FIRST, user="root")
    kept = "stat --format='%n %U %a' /etc /etc/passwd"
    before = cluster.run(kept, host=FIRST, user="root").stdout

    assert in_job(cluster, "ada", "enroot import x") == ["ada 700"] * 4
    assert in_job(cluster, "mallory", AGAIN) == ["mallory 700"] * 4
    assert in_job(cluster, "ada", "enroot import x") == ["ada 700"] * 4

    assert cluster.run(kept, host=FIRST, user="root").stdout == before
    gone = "rm -r /run/enroot/user-2001 /fsx/podwright/enroot/user-2001 /opt/dlami/nvme/enroot/*/user-2001"
    cluster.run(f"{gone} && systemctl start user-runtime-dir@2001.service", host=FIRST, user="root")
    assert cluster.run("enroot import x", host=FIRST, user="ada").stdout.splitlines() == ["ada 700"] * 4
    assert set(cluster.node_states().values()) <= IN_SERVICE


def test_a_node_that_lost_a_gpu_is_drained_and_the_job_runs_elsewhere(cluster: NamespacedCluster) -> None:
    """The prolog finds one GPU of two: the node is drained with that reason, the job is requeued and completes."""
    cluster.wait_until_idle()  # an earlier job may still be completing on the first node
    cluster.run("rm /dev/nvidia1", host=FIRST, user="root")
    job = submit(cluster, "hostname")  # on the first node that is idle
    ended = cluster.wait_for_job(job, timeout_s=600)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert said(cluster, job).strip() == SECOND
    assert cluster.node_states()[FIRST] == "drained"
    reason = cluster.run(f"scontrol show node {FIRST}").stdout
    assert "Reason=podwright: nvidia-smi -L lists 1 GPUs; the type has 2 A10G" in reason


def test_a_sick_node_fails_with_the_reason_that_the_service_acts_on(cluster: NamespacedCluster) -> None:
    """The node without a GPU reports it the second time it finds it; the controller lets HyperPod reboot it."""
    timer = "systemctl start podwright-remediation"
    cluster.run("mknod -m 644 /dev/kmsg c 1 11", host=FIRST, user="root")  # which has what attack.sh wrote
    cluster.run(timer, host=FIRST, user="root")
    cluster.run(timer, host=CONTROLLER, user="root")
    assert "Action:" not in cluster.run(f"scontrol show node {FIRST}").stdout
    cluster.run(timer, host=FIRST, user="root")
    assert "Comment=podwright:reboot:" in cluster.run(f"scontrol show node {FIRST}").stdout
    reserve = "reservation=deep-health-checks flags=MAINT,IGNORE_JOBS users=root starttime=now duration=60"
    cluster.run(f"scontrol create {reserve} nodes={FIRST}", user="root")  # as HyperPod's deep health checks do
    wait_for(
        lambda: "MAINTENANCE" in cluster.run(f"scontrol show node {FIRST}").stdout,
        timeout_s=600,
        description=lambda: f"{FIRST} to be reserved",
    )
    cluster.run(timer, host=CONTROLLER, user="root")
    assert "Action:" not in cluster.run(f"scontrol show node {FIRST}").stdout
    cluster.run("scontrol delete reservation=deep-health-checks", user="root")
    wait_for(
        lambda: "MAINTENANCE" not in cluster.run(f"scontrol show node {FIRST}").stdout,
        timeout_s=600,
        description=lambda: f"{FIRST} to be free again",
    )
    for _ in range(2):
        cluster.run(timer, host=CONTROLLER, user="root")
    shown = cluster.run(f"scontrol show node {FIRST}").stdout
    assert "Reason=Action:Reboot" in shown
    assert cluster.node_states()[FIRST] == "fail"

    # A job reports a node: nothing happens to one where no job of its user runs, not even with a forged line.
    cluster.run(f"scontrol update NodeName={FIRST} State=RESUME Comment=", user="root")
    claim = "podwright:reboot:$(date +%s):run"
    for comment, state in (
        (f"{claim}@{FIRST}", "allocated"),
        (f"$'\\n1|'{claim}@{FIRST}", "allocated"),
        (f"{claim}@{SECOND}", "failing"),
    ):
        script = f"scontrol update JobId=$SLURM_JOB_ID Comment={comment}; touch /fsx/runs/said; sleep 600"
        job = submit(cluster, script, "--partition=gpu", f"--nodelist={SECOND}", "--exclusive")
        cluster.run("until [[ -e /fsx/runs/said ]]; do sleep 0.1; done; rm /fsx/runs/said", user="root")
        cluster.run(f"systemctl reset-failed podwright-remediation; {timer}", host=CONTROLLER, user="root")
        states = cluster.node_states()
        assert states[SECOND].startswith(state), comment
        assert states[FIRST] == "idle", comment
        cluster.run(f"scancel {job}")
        cluster.wait_for_job(job)
    assert "Reason=Action:Reboot" in cluster.run(f"scontrol show node {SECOND}").stdout
    cluster.run(f"scontrol update NodeName={SECOND} State=RESUME", user="root")

    # Neither a second claim about the node, nor one beside a job of another user, nor many of them do anything.
    small = f"--partition=gpu --nodelist={SECOND} --chdir=/tmp --output=/dev/null --parsable"
    submit_small = f"sbatch {small} --comment=podwright:replace:$(date +%s):xid@{SECOND} --wrap 'sleep 600'"
    record = "/var/spool/slurmctld/podwright-remediation.json"
    cluster.run(f"rm {record}", host=CONTROLLER, user="root")  # nothing was done before
    job = int(cluster.run(f"sbatch {small} --wrap 'sleep 600'").stdout)
    claims = [int(cluster.run(submit_small, user="mallory").stdout) for _ in range(3)]
    for number in (job, claims[0]):
        cluster.wait_for_job(number, frozenset({"RUNNING"}), timeout_s=600)
    cluster.run(f"systemctl reset-failed podwright-remediation; {timer}", host=CONTROLLER, user="root")
    assert "fail" not in cluster.node_states()[SECOND]
    cluster.run(f"scancel {job}")
    cluster.wait_for_job(job, timeout_s=600)
    for _ in range(2):
        cluster.run(f"systemctl reset-failed podwright-remediation; {timer}", host=CONTROLLER, user="root")
        acts = json.loads(cluster.run(f"cat {record}", host=CONTROLLER, user="root").stdout)
        assert [(act["node"], act["action"], act["claimed_by"]) for act in acts] == [(SECOND, "reboot", 2002)]
        cluster.run(f"scontrol update NodeName={SECOND} State=RESUME", user="root", check=False)  # in service already
    cluster.run("scancel --user=mallory", user="root")
    cluster.wait_until_idle([SECOND], timeout_s=600)


def slurmd_start(cluster: NamespacedCluster, host: str) -> str:
    """Return when a node's slurmd has started, as slurmctld heard it."""
    return "".join(re.findall(r"SlurmdStartTime=(\S+)", cluster.run(f"scontrol show node {host}").stdout))


def test_containers_alone_have_folders_before_the_first_step_on_each_node(
    cluster: NamespacedCluster, bundle: Callable[..., Path]
) -> None:
    """Without PrologFlags=Alloc a node's prolog runs before its first step, also where no batch script runs.

    Alloc is for nodes.prolog; containers alone do without it, because HyperPod's auto-resume may refuse it.
    """
    # slurmd does not take a new configuration without the GPU that the first node has lost in a test above.
    cluster.run("[ -e /dev/nvidia1 ] || mknod -m 666 /dev/nvidia1 c 1 3", host=FIRST, user="root")
    scripts = cluster.directory / "fsx" / "containers_alone"
    nodes = replace(PARAMETERS.nodes, prolog=None, containers=Containers(docker=False))
    shutil.move(bundle(replace(PARAMETERS, nodes=nodes)), scripts)
    plugin = "mkdir -p /opt/slurm/lib/slurm && touch /opt/slurm/lib/slurm/spank_pyxis.so"
    began = {host: slurmd_start(cluster, host) for host in (FIRST, SECOND)}
    steps = dict.fromkeys((FIRST, SECOND), ("parameters", "enroot", "prolog"))
    for host, names in {**steps, CONTROLLER: ("parameters", "slurm_conf")}.items():
        for step in names:
            cluster.run(f"{plugin}; /fsx/containers_alone/on_create.sh --only {step}", host=host, user="root")
    config = cluster.run("scontrol show config").stdout
    assert "podwright-prolog.sh" in config
    assert not re.search("PrologFlags.*Alloc", config)
    # slurmctld has the new flags at once, a slurmd when it has started anew: between the two no prolog would run.
    wait_for(
        lambda: all(slurmd_start(cluster, host) != start for host, start in began.items()),
        timeout_s=600,
        description=lambda: "slurmd to take the new configuration",
    )
    cluster.wait_until_idle([FIRST, SECOND], timeout_s=600)

    parents = "/run/enroot /opt/dlami/nvme/enroot/{cache,data,temporary}"
    remove = ["bash", "-c", f"for parent in {parents}; do rm -rf $parent/user-*; done"]
    for host in (FIRST, SECOND):
        cluster.run(remove, host=host, user="root")
    both = ["srun", "--nodes=2", "--ntasks-per-node=1", "--label", "--chdir=/tmp", "enroot", "import", "x"]
    printed = cluster.run(both, user="ada", timeout_s=600).stdout
    assert sorted(printed.splitlines()) == ["0: ada 700"] * 4 + ["1: ada 700"] * 4

    script = """
        touch /fsx/runs/batch_runs
        until [[ -e /fsx/runs/srun_may_start ]]; do sleep 0.1; done
        srun --label enroot import x 2>/dev/null
    """
    job = submit(cluster, script, "--nodes=2", "--ntasks-per-node=1")
    cluster.run("until [[ -e /fsx/runs/batch_runs ]]; do sleep 0.1; done", timeout_s=600)
    made = [
        bool(cluster.run("ls /run/enroot", host=host, user="root").stdout.count("1000")) for host in (FIRST, SECOND)
    ]
    assert made == [True, False]  # the batch script's node alone
    cluster.run("touch /fsx/runs/srun_may_start")
    assert cluster.wait_for_job(job, timeout_s=600)["JobState"] == "COMPLETED"
    assert sorted(said(cluster, job).splitlines()) == ["0: ubuntu 700"] * 4 + ["1: ubuntu 700"] * 4


def test_features_that_are_switched_off_leave_the_nodes(
    cluster: NamespacedCluster, bundle: Callable[..., Path]
) -> None:
    """A boot without them removes their timers, services and programs; the node still takes jobs.

    The unit that lets jobs onto a node after a reboot is no feature's.
    """
    plain = bundle(replace(PARAMETERS, nodes=NodeFeatures()))
    ours = "systemctl list-unit-files --no-legend 'podwright-*'"
    of_cron = "cat /etc/cron.allow /etc/at.allow"
    assert cluster.run(of_cron, host=SECOND).stdout.split() == ["root", "root"]
    assert "podwright-remediation.timer" in cluster.run(ours, host=SECOND).stdout
    require_booted([cluster.boot_one(host, plain) for host in (CONTROLLER, SECOND)])
    remaining = cluster.run(f"{ours}; {of_cron}", host=SECOND, check=False).stdout.splitlines()
    assert [line.split()[0] for line in remaining] == ["podwright-return.service", "podwright-return.timer"]
    assert "podwright-remediation" not in cluster.run(ours, host=CONTROLLER, check=False).stdout
    assert "podwright-prolog" not in cluster.run("scontrol show config").stdout
    cluster.run(f"srun --partition gpu --nodelist {SECOND} true")
