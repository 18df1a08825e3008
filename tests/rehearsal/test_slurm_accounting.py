"""podwright's own lifecycle scripts with real slurmdbd, MariaDB, sacct, pam_slurm_adopt and logrotate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from podwright_bootstrap.contract import Accounting, InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import Account, NodeFeatures, PamSlurmAdopt, PartitionLimits, Qos, SlurmPolicy
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.host_errors import tail
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.supplies import SHARDS
from podwright_testing import trainer
from podwright_testing.boots import require_booted
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    controller_group="controller",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    region="us-west-2",
    instance_facts={"workers": InstanceFacts("gpu", 2, "A10G", 1)},
    accounting=Accounting(endpoint="", port=3306, secret_arn=""),
    nodes=NodeFeatures(pam_slurm_adopt=PamSlurmAdopt(admins=("overseer",))),
)

POLICY = SlurmPolicy(
    accounts=(
        # an exclusive job counts all GPUs of its nodes
        Account("research", users=("ubuntu",), fair_share=3, qos=("normal", "urgent", "night"), max_gpus=8),
        Account("teaching", users=("ubuntu",), max_jobs_per_user=5),
    ),
    qos=(
        Qos("urgent", priority=100, preempts=("normal",), max_wall_minutes=240),
        Qos("night", priority=10, max_jobs_per_user=1, max_gpus_per_user=2),
    ),
    partitions=(PartitionLimits("gpu", max_minutes=600, accounts=("research", "teaching")),),
    settings={"MaxArraySize": "2001"},
)


# The module's package as a repository of the host's own apt, and gone from the host.
OFFER_PACKAGE = r"""
set -e
mkdir -p /opt/debs/root/DEBIAN
cd /opt/debs
dpkg --listfiles libpam-slurm-adopt | while read -r path; do
  if [[ -f $path ]]; then install -D "$path" "root$path"; fi
done
dpkg --status libpam-slurm-adopt | grep --extended-regexp '^(Package|Version|Architecture|Maintainer|Depends): ' \
  | tee Packages >root/DEBIAN/control
echo 'Description: module' | tee --append Packages >>root/DEBIAN/control
dpkg-deb --build root module.deb >/dev/null
printf 'Filename: ./module.deb
Size: %s
SHA256: %s
' "$(stat --format=%s module.deb)"   "$(sha256sum module.deb | cut --delimiter=' ' --fields=1)" >>Packages
dpkg --purge libpam-slurm-adopt >/dev/null
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/opt/debs ./' >/etc/apt/sources.list
"""


@pytest.fixture(scope="module")
def cluster(make_cluster, bundle) -> NamespacedCluster:
    """A cluster that booted twice, with accounts on its controller; the first node's image lacked the PAM module."""
    cluster = make_cluster(environment={"PODWRIGHT_PATIENCE": "0.5"}, binds=trainer.binds())
    cluster.start()
    cluster.run(OFFER_PACKAGE, host=FIRST, user="root")
    scripts = bundle(PARAMETERS)
    shutil.copytree(scripts, cluster.directory / "fsx" / "scripts")
    for _ in range(2):
        require_booted(cluster.boot(scripts, timeout_s=600).values())
    cluster.wait_until_idle(timeout_s=600)
    return cluster


def test_sacct_knows_a_job_that_has_ended(cluster):
    """A job's account, its GPUs and how it ended are in the database."""
    cluster.run("srun --partition gpu -N 2 --gres=gpu:2 true")

    def rows() -> str:  # slurmctld informs slurmdbd within seconds
        return cluster.run(
            "sacct --allocations --noheader --parsable2 --format=User,Account,State,NNodes,AllocTRES"
        ).stdout

    wait_for(lambda: "COMPLETED" in rows(), timeout_s=600, description=lambda: f"the job in sacct: {rows()}")
    user, account, state, nodes, tres = rows().splitlines()[-1].split("|")
    assert (user, account, state, nodes) == ("ubuntu", "default", "COMPLETED", "2")
    assert "gres/gpu=4" in tres


def test_the_cluster_and_its_user_are_registered(cluster):
    """`sacctmgr show assoc` has the job user in the default account of the cluster."""
    rows = cluster.run("sacctmgr --noheader --parsable2 show assoc format=cluster,account,user").stdout.splitlines()
    assert {"demo|default|", "demo|default|ubuntu"} <= set(rows)


def test_second_boot_changes_nothing(cluster):
    """Accounts are set up once."""
    log = (cluster.directory / f"{CONTROLLER}-boot-2.log").read_text()
    assert ", 0 changes, " in log


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd", "munge"])
def test_a_killed_daemon_of_the_controller_comes_back(cluster, daemon):
    """The host starts it again; one that somebody stops stays stopped, also after it was killed."""
    state = "systemctl show --property=MainPID --property=ActiveState --value"

    def shown() -> list[str]:
        return sorted(cluster.run(f"{state} {daemon}", user="root").stdout.split())

    pid, active = shown()
    assert active == "active"
    cluster.run(f"kill -KILL {pid}", user="root")
    wait_for(
        lambda: shown()[1] == "active" and shown()[0] not in {"0", pid},
        timeout_s=600,
        description=lambda: f"{daemon} to run again: {shown()}",
    )
    for command in ("sacctmgr --noheader show cluster", "scontrol ping"):
        wait_for(
            lambda command=command: cluster.run(command, check=False).returncode == 0,
            timeout_s=600,
            description=lambda command=command: f"an answer to {command}",
        )
    # slurmctld writes its state every five seconds: after a kill, an srun that had just ended is running again and
    # keeps its nodes. Slurm ends such a job by itself only with InactiveLimit, which is not set here.
    cluster.run("scancel --user=ubuntu")
    assert cluster.run("srun --partition gpu hostname", timeout_s=600).stdout
    if daemon != "munge":  # without which no command works
        pid, _ = shown()
        cluster.run(f"systemctl stop {daemon}; sleep 7", user="root")
        assert shown() == ["0", "inactive"]
        cluster.run(f"systemctl start {daemon}", user="root")


def test_nobody_but_slurm_reads_its_configuration(cluster):
    """slurmdbd.conf is slurm's alone, and no other user of the host gets into the database."""
    shown = cluster.run("stat --format='%U %a' /opt/slurm/etc/slurmdbd.conf", user="root").stdout
    assert shown.strip() == "slurm 600"
    refused = cluster.run("mysql --user=slurm --execute='SELECT 1'", check=False)
    assert refused.returncode != 0
    assert "Access denied" in refused.stderr


def test_sacct_answers_on_a_compute_node(cluster):
    """Nodes without a slurm.conf of their own reach slurmdbd too."""
    assert "demo" in cluster.run("sacct --allusers --noheader --format=Cluster", host=FIRST).stdout


def test_who_has_no_job_on_a_node_stays_outside(cluster):
    """Sshd lets a user in while a job of theirs is there, administrators and root always."""
    assert "installed libpam-slurm-adopt " in (cluster.directory / f"{FIRST}-boot-1.log").read_text()
    login = "ssh -o BatchMode=yes -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no"
    outside = cluster.run(f"{login} {FIRST} true", check=False)
    assert outside.returncode != 0
    assert "Access denied by pam_slurm_adopt" in outside.stderr
    job_id = cluster.run(f"sbatch --parsable --partition gpu --nodelist {FIRST} --wrap 'sleep 3600'").stdout.strip()
    cluster.wait_for_job(int(job_id), frozenset({"RUNNING"}))
    assert cluster.run(f"{login} {FIRST} hostname").stdout.strip() == FIRST
    cluster.run(f"scancel {job_id}")
    cluster.run(
        "useradd --create-home overseer && install -D -o overseer -m 600 /home/ubuntu/.ssh/authorized_keys"
        " /home/overseer/.ssh/authorized_keys && install -D -m 600 /home/ubuntu/.ssh/authorized_keys"
        " /root/.ssh/authorized_keys && chown -R overseer /home/overseer",
        host=SECOND,
        user="root",
    )
    for user in ("overseer", "root"):
        assert cluster.run(f"{login} {user}@{SECOND} id --user --name").stdout.strip() == user


def test_daemons_go_on_in_a_new_log(cluster):
    """After a rotation the daemons write into new files."""
    cluster.run("logrotate --force /etc/logrotate.d/slurm", user="root")

    def sizes() -> list[str]:
        logs = "/var/log/slurm/slurmctld.log /var/log/slurm/slurmctld.log.1"
        writes_a_line = "scontrol setdebug info"
        return cluster.run(f"{writes_a_line}; stat --format=%s {logs}", user="root", check=False).stdout.split()

    wait_for(
        lambda: len(sizes()) == 2 and "0" not in sizes(), timeout_s=600, description=lambda: f"lines in both: {sizes()}"
    )


def test_state_of_another_cluster_is_left_alone(cluster):
    """State of the same name and another id is taken; of another name, the boot fails in one line with what to do."""
    folder = cluster.run("scontrol show config | awk '/^StateSaveLocation/ {print $3}'").stdout.strip()
    file = f"{folder}/clustername"

    def boot_with(text: str) -> tuple[int, str]:
        line = f"systemctl stop slurmctld; printf {text} >{file}; /fsx/scripts/on_create.sh --only slurm"
        done = cluster.run(f"{line}; status=$?; echo; cat {file}; exit $status", user="root", check=False)
        return done.returncode, done.stdout

    status, said = boot_with("demo:4018")
    assert status == 0, said
    assert "with the id that slurmdbd gave to the cluster" in said
    assert said.splitlines()[-1] not in {"demo:4018", ""}

    status, said = boot_with("other:4018")
    assert status == 1
    assert "slurmctld ended: CLUSTER NAME MISMATCH, and " in said
    assert "if that is this cluster's old name, `rm " in said
    assert said.splitlines()[-1] == "other:4018"
    assert boot_with("demo:4018")[0] == 0


def train(cluster: NamespacedCluster) -> tuple[int, RunFolder]:
    """Submit a training job for all nodes in account research; return its number and its run folder."""
    shared = cluster.directory / "fsx"
    trainer.install(shared / "environment")
    environment = "/fsx/environment"
    said = cluster.run(
        "SBATCH_ACCOUNT=research "
        f"{environment}/bin/podwright-train launch --run-dir=/fsx/runs/preempted --environment={environment} --nodes=2 "
        "--nproc-per-node=1 --partition=gpu --accelerator=cpu -- --preset=tiny --max-steps=100000 --checkpoint-freq=5 "
        f"--dataset={trainer.DATASET} --dataset-config-name=en --tokenizer={trainer.DATASET}/tokenizer "
        f"--data-streams={SHARDS}"
    ).stdout
    return int(re.findall(r"submitted job (\d+)", said)[0]), RunFolder(shared / "runs" / "preempted")


def steps(run: RunFolder, event: str) -> list[int]:
    """Return the steps of a run's events of this name."""
    return [found["step"] for found in logged(run, event)]


@pytest.fixture
def declare(cluster: NamespacedCluster, bundle) -> Callable[[SlurmPolicy | None], str]:
    """Deploy another policy, apply it on the controller, and return what was said."""

    def call(policy: SlurmPolicy | None) -> str:
        scripts = cluster.directory / "fsx" / "policy"
        shutil.rmtree(scripts, ignore_errors=True)
        shutil.move(bundle(replace(PARAMETERS, nodes=replace(PARAMETERS.nodes, slurm=policy))), scripts)
        steps = ("parameters", "accounting", "slurm_conf")
        return "".join(cluster.run(f"/fsx/policy/on_create.sh --only {step}", user="root").stdout for step in steps)

    return call


def associations(cluster: NamespacedCluster) -> set[str]:
    """Return account, user, fair share, QOS and limit of each association."""
    columns = "Account,User,Share,QOS,GrpTRES,MaxJobs"
    return set(cluster.run(f"sacctmgr -nP show assoc cluster=demo format={columns}").stdout.split())


def refuse_by_limits_and_order_by_priority(cluster: NamespacedCluster) -> None:
    """Check that each QOS has its own limits and priority: squeue says why a job waits, and how urgent it is."""

    def submit(options: str) -> int:
        line = f"sbatch --parsable --partition gpu --account research {options} --wrap 'sleep 3600'"
        return int(cluster.run(line).stdout)

    def priority_while_waiting_for(reason: str, options: str) -> int:
        job = submit(options)
        shown = f"squeue --noheader --format='%r %Q' --jobs {job}"
        wait_for(
            lambda: cluster.run(shown).stdout.split()[0] == reason,
            timeout_s=600,
            description=lambda: f"{reason}: {cluster.run(shown).stdout}",
        )
        priority = int(cluster.run(shown).stdout.split()[1])
        cluster.run(f"scancel {job}")
        return priority

    runs = submit("--qos night")
    cluster.wait_for_job(runs, frozenset({"RUNNING"}))
    low = priority_while_waiting_for("QOSMaxJobsPerUserLimit", "--qos night")
    assert low < priority_while_waiting_for("QOSMaxWallDurationPerJobLimit", "--qos urgent --time 300")
    cluster.run(f"scancel {runs}")
    cluster.wait_for_job(runs)
    priority_while_waiting_for("QOSMaxGRESPerUser", "--qos night --gres=gpu:2 -N 2")


def test_a_policy_is_applied_changed_and_removed(cluster, declare):
    """Accounts, QOS and limits are those declared, once; a job of lower QOS gives way, is requeued and resumes."""
    before = associations(cluster)
    said = declare(POLICY)
    assert "added account teaching" in said
    assert {"research||3|night,normal,urgent|gres/gpu=8|", "teaching||1|normal||5"} <= associations(cluster)
    assert "default|ubuntu|1|normal||" not in associations(cluster)
    assert declare(POLICY).count("1 steps, 0 changes") == 3
    shown = cluster.run("scontrol show partition gpu; scontrol show config").stdout
    assert all(text in shown for text in ("MaxTime=10:00:00", "AllowAccounts=research,teaching", "= preempt/qos"))

    low, run = train(cluster)
    wait_for(
        lambda: steps(run, "checkpoint") != [], timeout_s=600, description=lambda: f"a checkpoint\n{tail(run.log)}"
    )
    whole = "--partition gpu -N 2 --exclusive --account research --qos urgent"
    high = int(cluster.run(f"sbatch --parsable {whole} --wrap true").stdout)
    assert cluster.wait_for_job(high)["JobState"] == "COMPLETED"
    wait_for(
        lambda: len(steps(run, "start")) == 2, timeout_s=600, description=lambda: f"the job again\n{tail(run.log)}"
    )
    cluster.run(f"scancel {low}")
    first, second = steps(run, "start")
    assert first == 0
    assert second > 0
    assert cluster.job(low)["Restarts"] == "1"
    refuse_by_limits_and_order_by_priority(cluster)

    research = replace(POLICY.accounts[0], fair_share=1, max_gpus=None, qos=("normal",))
    declare(SlurmPolicy(accounts=(research,)))
    assert "research||1|normal||" in associations(cluster)
    assert not any(row.startswith("teaching") for row in associations(cluster))
    assert "MaxTime=UNLIMITED" in cluster.run("scontrol show partition gpu").stdout

    declare(None)
    assert associations(cluster) == before
    assert cluster.run("sacctmgr -nP show qos format=Name").stdout.split() == ["normal"]
    assert declare(None).count("1 steps, 0 changes") == 3
