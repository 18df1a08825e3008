"""A cluster that works: hosts, boot, Slurm, the way out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_training.config.sources import preset_names
from podwright_training.run_folder import RunFolder
from podwright_training.slurm.batch_script import Job, render

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = HOSTS = ["ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"]


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster], lifecycle: Path, web_server: tuple[str, int], tmp_path_factory
) -> NamespacedCluster:
    """A booted cluster with the relay to a web server and a read-only folder of the machine."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheels.chmod(0o755)
    (wheels / "readme").write_text("a wheelhouse")
    endpoint = f"http://127.0.0.1:{web_server[1]}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-west-2",
    }
    binds = [(wheels, "/opt/rehearsal/wheels")]
    return booted(lifecycle, relay=web_server, environment=environment, binds=binds)


def test_slurm_runs_a_job_on_every_compute_node(cluster: NamespacedCluster) -> None:
    """After the lifecycle scripts the nodes are idle and srun reaches both, each under its own name and address."""
    assert cluster.node_states() == {FIRST: "idle", SECOND: "idle"}
    printed = cluster.run("srun --partition gpu -N 2 bash -c 'echo $(hostname) $(hostname -i)'").stdout
    assert sorted(printed.splitlines()) == [f"{FIRST} 10.0.16.6", f"{SECOND} 10.0.16.7"]


def test_slurm_takes_the_job_of_every_preset(cluster: NamespacedCluster) -> None:
    """The batch script of each preset is one that Slurm would start on these nodes."""
    for preset in preset_names():
        job = Job(
            run=RunFolder(Path("/fsx/scratch") / preset),
            nodes=2,
            nproc_per_node=2,
            environment=Path("/fsx/environment"),
            partition="gpu",
            accelerator="gpu",
            gres="gpu:2",
            trainer_arguments=("--preset", preset),
        )
        (cluster.directory / "fsx/scratch" / f"{preset}.sbatch").write_text(render(job))
        said = cluster.run(f"sbatch --test-only /fsx/scratch/{preset}.sbatch").stderr
        assert "to start at" in said, said
    refused = cluster.run(f"sbatch --test-only --gres=gpu:9 /fsx/scratch/{preset}.sbatch", check=False)
    assert refused.returncode != 0


def test_every_host_has_its_own_disk(cluster: NamespacedCluster) -> None:
    """A file of one host is visible neither on another nor on the machine."""
    cluster.run("echo one > /etc/only-here", host=FIRST, user="root")
    assert cluster.path(FIRST, "/etc/only-here").read_text() == "one\n"
    assert not cluster.path(SECOND, "/etc/only-here").exists()
    assert not Path("/etc/only-here").exists()


def test_lustre_is_one_directory_for_all(cluster: NamespacedCluster) -> None:
    """`mount -t lustre` is recorded as asked, looks like Lustre, and every host and the machine share its files."""
    asked = [call for call in cluster.shim_calls(FIRST) if call.startswith("mount.lustre")]
    assert len(asked) == 1
    assert "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com@tcp:/abcdefgh /fsx" in asked[0]
    assert "flock" in asked[0]
    cluster.run("echo from $(hostname) > /fsx/scratch/note", host=FIRST)
    assert cluster.run("cat /fsx/scratch/note", host=SECOND).stdout == f"from {FIRST}\n"
    assert (cluster.directory / "fsx/scratch/note").read_text() == f"from {FIRST}\n"
    assert cluster.run("mountpoint /fsx").stdout == "/fsx is a mountpoint\n"
    shown = cluster.run("findmnt --noheadings --output SOURCE,FSTYPE /fsx").stdout.split()
    assert shown == ["fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com@tcp:/abcdefgh", "lustre"]
    assert cluster.run("findmnt --noheadings --types lustre --output TARGET").stdout == "/fsx\n"


def test_openzfs_is_one_directory_for_all(cluster: NamespacedCluster) -> None:
    """`mount -t nfs` shows every host the same files, apart from Lustre's, and looks like NFS."""
    source = "fs-0fedcba9876543210.fsx.us-west-2.amazonaws.com:/fsx"
    for host in (FIRST, SECOND):
        cluster.run(f"mkdir -p /srv/homes && mount -t nfs -o nfsvers=4.1 {source} /srv/homes", host=host, user="root")
    cluster.run("echo from $(hostname) > /srv/homes/note", host=FIRST, user="root")
    assert cluster.run("cat /srv/homes/note", host=SECOND).stdout == f"from {FIRST}\n"
    assert not (cluster.directory / "fsx/note").exists()
    shown = cluster.run("findmnt --noheadings --output SOURCE,FSTYPE /srv/homes", host=FIRST).stdout.split()
    assert shown == [source, "nfs4"]
    refused = cluster.run("mount -t nfs homes /mnt", host=FIRST, user="root", check=False)
    assert (refused.returncode, "homes" in refused.stderr) == (32, True)


def test_a_source_that_is_no_file_system_is_refused(cluster: NamespacedCluster) -> None:
    """A malformed Lustre source fails the mount and is named."""
    refused = cluster.run("mount -t lustre fs-1:/x /mnt", user="root", check=False)
    assert refused.returncode == 32
    assert "fs-1:/x" in refused.stderr


def test_resource_config_names_groups_and_instances(cluster: NamespacedCluster) -> None:
    """resource_config.json has the service's layout on every host."""
    texts = {cluster.path(host, "/opt/ml/config/resource_config.json").read_text() for host in HOSTS}
    assert len(texts) == 1
    content = json.loads(texts.pop())
    groups = {group["Name"]: group for group in content["InstanceGroups"]}
    assert groups["workers"]["InstanceType"] == "ml.g5.12xlarge"
    assert [instance["CustomerIpAddress"] for instance in groups["workers"]["Instances"]] == ["10.0.16.6", "10.0.16.7"]
    assert groups["controller"]["Instances"][0]["InstanceId"] == f"i-of-{CONTROLLER}"
    assert content["ClusterConfig"]["ClusterName"] == "demo"
    assert groups["workers"]["Instances"][1]["InstanceLabel"] == "workers-2"
    assert "ClusterType" in content


def test_only_the_controller_has_slurm_conf(cluster: NamespacedCluster) -> None:
    """Compute nodes are configless: they have what slurmctld sent them."""
    assert cluster.path(CONTROLLER, "/opt/slurm/etc/slurm.conf").exists()
    assert not cluster.path(FIRST, "/opt/slurm/etc/slurm.conf").exists()
    assert cluster.path(FIRST, "/var/spool/slurmd/conf-cache/slurm.conf").exists()


def test_accelerators_are_devices_and_gres(cluster: NamespacedCluster) -> None:
    """A job gets as many GPUs as the node has and not one more; nvidia-smi lists them where there are any."""
    printed = cluster.run("srun -N 2 --gres=gpu:2 bash -c 'echo $CUDA_VISIBLE_DEVICES'").stdout
    assert printed.split() == ["0,1", "0,1"]
    assert "not available" in cluster.run("srun -N 1 --gres=gpu:3 true", check=False).stderr
    query = "nvidia-smi --query-gpu=index,name --format=csv,noheader"
    assert cluster.run(query, host=FIRST).stdout == "0, Rehearsal\n1, Rehearsal\n"
    assert cluster.run("nvidia-smi -L", check=False).returncode == 9


@pytest.mark.parametrize(("value", "accepted"), [("0", True), ("1", True), ("2", False)])
def test_srun_takes_auto_resume(cluster: NamespacedCluster, value: str, *, accepted: bool) -> None:
    """An srun knows HyperPod's --auto-resume and refuses what HyperPod does not define."""
    done = cluster.run(f"srun --auto-resume={value} true", check=False)
    assert (done.returncode == 0) is accepted, done.stderr
    assert ("will be resumed" in done.stderr) is (value == "1")
    assert ("takes 0 or 1, not '2'" in done.stderr) is not accepted


def test_login_and_services_have_the_environment(cluster: NamespacedCluster) -> None:
    """The given environment is in a login shell, in sudo, in sshd's sessions and in a systemd service."""
    assert cluster.run("printenv AWS_DEFAULT_REGION").stdout == "us-west-2\n"
    assert cluster.run("sudo printenv AWS_DEFAULT_REGION").stdout == "us-west-2\n"
    unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'printenv AWS_DEFAULT_REGION > /opt/region'\n"
    cluster.path(FIRST, "/etc/systemd/system/region.service").write_text(unit)
    cluster.run("systemctl start region", host=FIRST, user="root")
    assert cluster.path(FIRST, "/opt/region").read_text() == "us-west-2\n"


def test_hosts_reach_the_relay(cluster: NamespacedCluster) -> None:
    """A curl on a host fetches from a server on the machine's loopback; so does the aws command by AWS_ENDPOINT_URL."""
    assert cluster.run("curl --silent $AWS_ENDPOINT_URL/any", host=FIRST).stdout == "hello from the machine"
    said = cluster.run("aws --debug sts get-caller-identity", check=False, host=FIRST).stderr
    assert "hello from the machine" in said


def test_the_relay_carries_much_at_once(cluster: NamespacedCluster) -> None:
    """Several hosts fetch megabytes at the same time, and all of them arrive."""
    done = cluster.run("srun -N 2 --ntasks 8 bash -c 'curl --silent $AWS_ENDPOINT_URL/large | sha256sum'").stdout
    assert done.splitlines() == [f"{hashlib.sha256(bytes(8 << 20)).hexdigest()}  -"] * 8


def test_hosts_reach_nothing_else(cluster: NamespacedCluster, web_server: tuple[str, int]) -> None:
    """No other address, name or port is reachable, and the failure comes at once."""
    for url in (
        "http://198.51.100.1/",
        "http://example.org/",
        f"http://127.0.0.1:{web_server[1]}/",
        "http://10.0.16.1:1/",
    ):
        refused = cluster.run(f"curl --silent --show-error --max-time 5 {url}", host=FIRST, check=False)
        assert refused.returncode in {6, 7}, refused.stderr  # could not resolve, failed to connect


def test_hosts_reach_each_others_sshd(cluster: NamespacedCluster) -> None:
    """With a key in place, ssh from one host to another works and is on another host."""
    cluster.run("mkdir -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519", host=FIRST)
    key = cluster.path(FIRST, "/home/ubuntu/.ssh/id_ed25519.pub").read_text().strip()
    cluster.run(f"mkdir -m 700 .ssh; echo '{key}' > .ssh/authorized_keys", host=SECOND)
    remote = (
        f"ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new {SECOND} 'hostname; printenv AWS_DEFAULT_REGION'"
    )
    assert cluster.run(remote, host=FIRST).stdout == f"{SECOND}\nus-west-2\n"


def test_nothing_of_the_machine_shows(cluster: NamespacedCluster) -> None:
    """Home directories, /opt, units and the checkout are the host's own; its Python is /usr/bin/python3."""
    assert cluster.run("command -v python3").stdout == "/usr/bin/python3\n"
    assert set(cluster.run("ls -A /root", user="root").stdout.split()) <= {".bashrc", ".profile", ".ssh"}
    assert sorted(cluster.run("ls /opt").stdout.split()) == ["amazon", "aws", "dlami", "ml", "rehearsal", "slurm"]
    checkout = Path(__file__).parents[2]
    assert cluster.run(["test", "-e", str(checkout)], user="root", check=False).returncode == 1
    assert cluster.run("cat /etc/fstab").stdout == ""


def test_packages_come_from_the_wheelhouse_only(cluster: NamespacedCluster) -> None:
    """The host's Python has no pip, as on AWS's image; its configuration names the bound wheels and nothing else."""
    assert cluster.run("cat /opt/rehearsal/wheels/readme").stdout == "a wheelhouse"
    assert cluster.run("python3 -c 'import pip'", check=False).returncode == 1
    configured = cluster.run("cat /etc/pip.conf").stdout.splitlines()
    assert configured[1:3] == ["no-index = true", "find-links = /opt/rehearsal/wheels"]


def test_binds_are_read_only_and_so_is_the_kernel(cluster: NamespacedCluster) -> None:
    """Root on a host can change neither a bound folder nor the machine's kernel settings."""
    for command in ("touch /opt/rehearsal/wheels/new", "bash -c 'echo 1 >/proc/sys/vm/swappiness'"):
        refused = cluster.run(command, user="root", check=False)
        assert refused.returncode != 0
        assert "ead-only" in refused.stderr or "permission denied" in refused.stderr


def test_a_failed_command_raises_with_its_output(cluster: NamespacedCluster) -> None:
    """A run raises with host, command and output; without check it returns."""
    with pytest.raises(HostError, match=rf"{SECOND}: `ls /nowhere` ended with 2\n.*cannot access"):
        cluster.run(["ls", "/nowhere"], host=SECOND)
    assert cluster.run("exit 3", check=False).returncode == 3
    with pytest.raises(HostError, match=r"`sleep 9` did not end within 0\.2 s"):
        cluster.run("sleep 9", timeout_s=0.2)


def test_an_unknown_host_is_named(cluster: NamespacedCluster) -> None:
    """A wrong host name is answered with the right ones."""
    with pytest.raises(HostError, match=f"no host 'ip-1': there are {CONTROLLER}"):
        cluster.run("true", host="ip-1")


def test_boot_lines_arrive_and_are_kept(cluster: NamespacedCluster, tmp_path: Path) -> None:
    """A failing script's exit code, last words and log are in its result, and each line was handed on as it came."""
    (tmp_path / "start.sh").write_text("#!/bin/bash\npwd\nls -l start.sh\necho no such package >&2\nexit 7\n")
    lines: list[tuple[str, str]] = []
    result = cluster.boot_one(FIRST, tmp_path, entry="start.sh", on_line=lambda *line: lines.append(line))
    assert (result.exit_code, result.ok) == (7, False)
    assert lines[0][0] == FIRST
    assert lines[0][1] != "/"
    assert lines[-1] == (FIRST, "no such package")
    assert result.log.read_text().endswith("no such package\n")
    assert result.describe().startswith(f"{FIRST}: exit 7 after ")
    assert str(result.log) in result.describe()


def test_a_missing_entry_script_is_named(cluster: NamespacedCluster, tmp_path: Path) -> None:
    """A bundle without the entry script is refused before anything is copied."""
    with pytest.raises(HostError, match=f"{FIRST} did not boot: no on_create.sh in {tmp_path}"):
        cluster.boot_one(FIRST, tmp_path)


def test_a_boot_that_hangs_is_ended(cluster: NamespacedCluster, tmp_path: Path) -> None:
    """After its time a script is killed with what it started, and the result says 124."""
    (tmp_path / "on_create.sh").write_text("#!/bin/bash\nsleep 98765 &\nsleep 98765\n")
    result = cluster.boot_one(SECOND, tmp_path, timeout_s=0.3)
    assert result.exit_code == 124
    assert cluster.run("pgrep -f '[s]leep 98765'", host=SECOND, user="root", check=False).stdout == ""


def test_a_daemon_with_an_open_log_does_not_delay_the_boot(cluster: NamespacedCluster, tmp_path: Path) -> None:
    """The boot ends with the script, not with what it left running."""
    (tmp_path / "on_create.sh").write_text("#!/bin/bash\nsetsid sleep 87654 &\necho left\n")
    assert cluster.boot_one(SECOND, tmp_path, timeout_s=600).exit_code == 0
    assert cluster.run("pkill -f '[s]leep 87654'", host=SECOND, user="root").returncode == 0


def test_the_machine_sees_no_mount_of_a_cluster(cluster: NamespacedCluster) -> None:
    """All mounts are in the cluster's own namespaces while it runs."""
    assert str(cluster.directory) not in Path("/proc/self/mountinfo").read_text()
    assert list((cluster.directory / "fabric").iterdir()) == []
