"""The commands that reach the nodes of a running cluster, on rehearsed hosts with real sshd and Slurm.

The cluster was made through SageMaker's API, not by podwright. Of Session Manager only the plugin is replaced: it
enters a host instead of opening a WebSocket.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

from podwright.planning.on_demand import on_demand
from podwright_bootstrap.contract import NODE_JSON, NodeRecord
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.run.lifecycle_logs import LifecycleLogs
from podwright_testing.faults import Faults
from podwright_testing.hyperpod import ClusterMaker
from podwright_testing.programs import started

pytestmark = pytest.mark.hosts

CHECKOUT = Path(__file__).parents[2]
NAME = "demo"
COMMAND_TIMEOUT_S = 600
RUNS_OF_VALIDATE = 4  # until no host is named by all: whatever else this machine does slows another one each time
PYTHON, PACKAGES = "/opt/python", "/opt/packages"  # of this machine, on the hosts


@dataclass
class Operator:
    """Somebody with a terminal, AWS credentials and an ssh key."""

    home: Path
    environment: dict[str, str]
    hosts: NamespacedCluster
    aws: AwsStandIn
    key: list[str] = field(default_factory=list)  # the argument that names the private key

    def start(self, *words):
        """Start a program as this person does."""
        pipe = subprocess.PIPE
        return started(words, env=self.environment, cwd=self.home, stdin=pipe, stdout=pipe, stderr=pipe)

    def run(self, *words, status=0):
        """Run a program; return its output, or the errors of one that is to fail."""
        with self.start(*words) as process:
            output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == status, f"{words}: {process.returncode}\n{output}{errors}"
        return errors if status else output

    def podwright(self, command, *words, status=0):
        return self.run(*self.command(command, *words), status=status)

    def command(self, command, *words):
        return [sys.executable, "-m", "podwright", command, "--cluster", NAME, *map(str, words)]


@pytest.fixture(scope="module")
def operator(tmp_path_factory, node_image, lifecycle):
    """An operator of a running cluster: a controller and three workers, booted, their output in CloudWatch."""
    folder = tmp_path_factory.mktemp("operator")
    with AwsStandIn(directory=folder / "aws", transition_s=0.2) as aws:
        arn = ClusterMaker(aws).make(NAME, workers=3)
        with NamespacedCluster(
            directory=folder / "cluster",
            image=node_image,
            cluster_name=NAME,
            cluster_arn=arn,
            subnet_cidr="10.1.0.0/20",
            nodes=list(nodes(aws)),
            shared=folder / "fsx",
            binds=[(Path(sys.base_prefix), PYTHON), (Path(torch.__file__).parents[1], PACKAGES)],
        ) as hosts:
            boot(hosts, aws, lifecycle, folder)
            (folder / "fsx" / "runs").mkdir()
            (folder / "fsx" / "runs").chmod(0o1777)  # as the boot makes it
            home = folder / "home"
            home.mkdir()
            environment = {**os.environ, **aws.environment(), "HOME": str(home), "NO_COLOR": "1"}
            environment |= {"PATH": f"{hosts.session_plugin()}:{os.environ['PATH']}", "PYTHONPATH": python_path()}
            yield Operator(home, environment, hosts, aws)


@pytest.fixture(scope="module")
def known(operator):
    """The same person, whose key the controller and the first worker know."""
    key = operator.home / "key"
    operator.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    operator.podwright("ssh-config", "--authorize", f"{key}.pub", "controller", "workers/1")
    operator.key = ["--identity", str(key)]
    return operator


def nodes(aws):
    """Yield the cluster's nodes as the API describes them."""
    sagemaker = aws.client("sagemaker")
    for summary in sagemaker.list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"]:
        details = sagemaker.describe_cluster_node(ClusterName=NAME, NodeId=summary["InstanceId"])["NodeDetails"]
        is_worker = details["InstanceGroupName"] == "workers"
        yield Node(
            hostname=details["PrivateDnsHostname"].partition(".")[0],
            private_ip=details["PrivatePrimaryIp"],
            instance_id=details["InstanceId"],
            instance_group=details["InstanceGroupName"],
            instance_type=details["InstanceType"],
            role="compute" if is_worker else "controller",
            partition="gpu" if is_worker else None,
            vcpus=48,
            memory_mib=190_000,
        )


def boot(hosts, aws, lifecycle, folder):
    scripts = shutil.copytree(lifecycle, folder / "lifecycle")
    controller = hosts.nodes[hosts.controller]
    (scripts / "controller_ip").write_text(f"{controller.private_ip}\n")
    logs = LifecycleLogs(aws.client("logs"), f"/aws/sagemaker/Clusters/{NAME}/{hosts.cluster_arn.rpartition('/')[2]}")

    def copy(hostname, line):
        node = hosts.nodes[hostname]
        logs.write(instance_group=node.instance_group, instance_id=node.instance_id, line=line)

    results = hosts.boot(scripts, on_line=copy)
    logs.flush()
    assert all(result.ok for result in results.values()), "\n".join(result.describe() for result in results.values())
    hosts.wait_until_idle()


def python_path():
    """Return the source roots, for a podwright that ssh starts."""
    return os.pathsep.join(
        str(CHECKOUT / name) for name in (".", "common", "constructs", "lifecycle_scripts", "training")
    )


def worker(operator, number=1):
    """Return a worker, counted by address."""
    return sorted(
        (node for node in operator.hosts.nodes.values() if node.role == "compute"), key=lambda node: node.private_ip
    )[number - 1]


def finish(operator, job_id):
    """Wait for the end of a job."""
    return operator.hosts.wait_for_job(int(job_id))


def wait_for(reached, *, timeout_s=600):
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def on_nodes(operator, verb, *words, status=0):
    """Run ``podwright nodes VERB``."""
    return operator.run(sys.executable, "-m", "podwright", "nodes", verb, "--cluster", NAME, *words, status=status)


def batch_script(operator, name, text):
    path = operator.home / f"{name}.sbatch"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return path


def test_connect_opens_a_shell_of_the_job_user(operator):
    """Without a node it is the controller's; another user and node can be asked for."""
    for arguments, expected in (
        ([], ["ubuntu", operator.hosts.controller]),
        (["workers/2", "--user", "root"], ["root", worker(operator, 2).hostname]),
    ):
        with operator.start(*operator.command("connect", *arguments)) as process:
            printed, errors = process.communicate("whoami; hostname; exit\n", timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 0, errors
        assert set(expected) <= set(printed.split()), printed


def test_a_node_that_knows_no_key_is_said_in_one_line(operator):
    """A refusal by sshd becomes what to do."""
    errors = operator.podwright("jobs", status=1)
    assert f"{operator.hosts.controller} refused every SSH key" in errors
    assert "ssh-config --authorize" in errors
    assert len(errors.splitlines()) == 1


def test_ssh_goes_in_through_the_written_config(known):
    """OpenSSH reads the file, checks host keys, and knows a node by three names; a second write changes nothing."""
    printed = known.podwright("ssh-config", "--write", *known.key)
    config = known.home / ".ssh" / "podwright" / "demo.config"
    assert printed == "wrote ~/.ssh/podwright/demo.config: 4 nodes; `ssh demo`\n"
    assert "StrictHostKeyChecking accept-new" in config.read_text()
    first = config.read_text()
    own = known.home / ".ssh" / "config"
    assert own.read_text().splitlines()[0] == "Include podwright/*.config"
    known.podwright("ssh-config", "--write", *known.key)
    assert (config.read_text(), own.read_text().count("Include")) == (first, 1)
    node = worker(known)
    for name, hostname in {
        "demo": known.hosts.controller,
        "demo-workers-1": node.hostname,
        f"demo-{node.hostname}": node.hostname,
    }.items():
        assert known.run("ssh", "-F", config, name, "hostname").strip() == hostname
    keys = (known.home / ".ssh" / "podwright" / "known_hosts").read_text()
    assert node.instance_id in keys
    assert (config.stat().st_mode & 0o777, config.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_changed_host_key_is_refused(known):
    """A host that shows another key than its instance did is not talked to."""
    known.podwright("jobs", *known.key)
    file = known.home / ".ssh" / "podwright" / "known_hosts"
    kept = file.read_text()
    controller = known.hosts.nodes[known.hosts.controller]
    other = (known.home / "key.pub").read_text().split()[:2]
    file.write_text(f"{controller.instance_id} {' '.join(other)}\n")
    errors = known.podwright("jobs", *known.key, status=1)
    assert "Host key verification failed" in errors
    assert controller.instance_id in errors
    file.write_text(kept)


def test_forward_makes_a_port_of_a_worker_ours(known):
    """A server on the worker's loopback answers here, until Ctrl-C."""
    node = worker(known)
    known.hosts.run("mkdir -p /tmp/site && echo hello > /tmp/site/index.html", host=node.hostname, user="root")
    serve = "nohup python3 -m http.server 8765 --bind 127.0.0.1 --directory /tmp/site > /dev/null 2>&1 & echo $!"
    pid = known.hosts.run(serve, host=node.hostname, user="root").stdout.strip()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        errors = known.podwright("forward", 8765, "workers/1", "--local-port", port, status=1)
        assert f"port {port} of this machine: Address already in use" in errors
    with known.start(*known.command("forward", 8765, "workers/1", "--local-port", port)) as process:
        wait_for(lambda: "Waiting for connections" in process.stdout.readline())
        with urlopen(f"http://127.0.0.1:{port}/", timeout=600) as answer:
            assert answer.read() == b"hello\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=COMMAND_TIMEOUT_S)
    known.hosts.run(f"kill {pid}", host=node.hostname, user="root")


def test_a_job_from_submit_to_fetch(known):
    """Files arrive, the job runs in its folder, its output is followed to the end, results come back once."""
    (known.home / "src").mkdir()
    (known.home / "src" / "hello.py").write_text("print('hello from', __file__)\n")
    script = batch_script(
        known,
        "train",
        "#SBATCH --ntasks-per-node=1\n"
        "srun hostname 2> /dev/null | sort\npython3 src/hello.py\n"
        "until [ -e go ]; do sleep 0.2; done\n"
        "mkdir -p hf checkpoints && echo weights > hf/model.safetensors && echo much > checkpoints/step-1\necho done",
    )
    printed = known.podwright("submit", script, "--send", "src", "--nodes", 2, "--name", "first", *known.key, "--json")
    job = json.loads(printed)
    assert (job["schema"], job["run"], job["folder"]) == ("podwright.submit/1", "first", "/fsx/runs/first")
    listed = json.loads(known.podwright("jobs", *known.key, "--json"))["jobs"]
    assert not known.podwright("jobs", "--check", *known.key, status=1)
    assert [(item["job_id"], item["name"], item["user"], item["node_count"]) for item in listed] == [
        (job["job_id"], "first", "ubuntu", 2)
    ]
    again = known.podwright("submit", script, "--name", "first", *known.key, status=1)
    assert f"run first already has job {job['job_id']}" in again
    (known.hosts.directory.parent / "fsx" / "runs" / "first" / "go").touch()
    output = known.podwright("logs", job["job_id"], "--follow", *known.key)
    hostnames = [worker(known, number).hostname for number in (1, 2)]
    assert output.splitlines() == [*hostnames, "hello from /fsx/runs/first/src/hello.py", "done"]
    assert known.podwright("logs", "first", "--lines", 1, *known.key) == "done\n"
    assert finish(known, job["job_id"])["JobState"] == "COMPLETED"
    assert known.podwright("jobs", "--check", *known.key) == "no jobs on demo\n"

    fetched = json.loads(known.podwright("fetch", "first", *known.key, "--json"))
    fetched_paths = {item["path"] for item in fetched["fetched"]}
    assert {"hf/model.safetensors", "submission.json", "src/hello.py", "train.sbatch"} <= fetched_paths
    assert not any(path.startswith("checkpoints/") for path in fetched_paths)
    run = known.home / "runs" / "first"
    assert (run / "hf" / "model.safetensors").read_text() == "weights\n"
    record = json.loads((run / "submission.json").read_text())
    assert set(record["sha256"]) == {"train.sbatch", "src/hello.py"}
    (run / "hf" / "model.safetensors").unlink()
    more = json.loads(known.podwright("fetch", "first", "--checkpoints", *known.key, "--json"))
    assert {item["path"] for item in more["fetched"]} == {"hf/model.safetensors", "checkpoints/step-1"}
    assert more["unchanged"] == len(fetched_paths) - 1


def test_a_followed_log_leaves_nothing_running(known):
    """After Ctrl-C no process of the command is left on the controller, and the job goes on."""
    script = batch_script(known, "long", "echo started\nsleep 600")
    job_id = json.loads(known.podwright("submit", script, *known.key, "--json"))["job_id"]
    with known.start(*known.command("logs", "long", "--follow", *known.key)) as process:
        wait_for(lambda: process.stdout.readline() == "started\n")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 130
    tail = "pgrep --full '^tail -n' || true"
    wait_for(lambda: not known.hosts.run(tail, user="root").stdout.strip())
    assert known.hosts.job(int(job_id))["JobState"] == "RUNNING"

    refused = known.podwright("cancel", "99", job_id, *known.key, status=2)
    assert "demo has no job 99: jobs that wait or run: " in refused
    assert "confirm with --yes" in known.podwright("cancel", job_id, *known.key, status=2)
    printed = known.podwright("cancel", "long", "--yes", *known.key)
    assert printed.startswith(f"canceled {job_id} (long, ubuntu, RUNNING)")
    assert finish(known, job_id)["JobState"] == "CANCELLED"


def test_lifecycle_logs_come_from_cloudwatch(known):
    """A node's name leads to its stream; all streams are listed; Slurm's own log is read on the node."""
    node = worker(known)
    lines = known.podwright("logs", "--lifecycle", node.hostname).splitlines()
    assert lines[0].endswith(f" boot of {node.hostname}")
    assert lines[-1].endswith(" booted")
    assert known.podwright("logs", "--lifecycle", node.instance_id, "-n", 1).splitlines() == lines[-1:]
    streams = json.loads(known.podwright("logs", "--lifecycle", "--json"))["streams"]
    assert {stream["name"] for stream in streams} == {
        f"LifecycleConfig/{node.instance_group}/{node.instance_id}" for node in known.hosts.nodes.values()
    }
    errors = known.podwright("logs", "--health", "workers/1", status=1)
    assert f"{node.hostname} ({node.instance_id}) has written no line yet; it is Running" in errors
    assert "slurmctld" in known.podwright("logs", "--slurm", "-n", 1000, *known.key)
    assert "slurmd" in known.podwright("logs", "--slurm", "workers/1", "-n", 1000, *known.key)


def test_what_slurm_does_not_know_is_said(known):
    """Unknown jobs and runs, accounting that is off, and a batch script that Slurm refuses."""
    assert "Slurm knows no job 4711" in known.podwright("logs", "4711", *known.key, status=2)
    assert "no output of a run 'absent' in /fsx/runs" in known.podwright("logs", "absent", *known.key, status=2)
    assert "no run 'absent' in /fsx/runs" in known.podwright("fetch", "absent", *known.key, status=2)
    assert "Slurm's accounting is off" in known.podwright("jobs", "--ended", 7, *known.key, status=1)
    script = batch_script(known, "refused", "true")
    assert "partition" in known.podwright("submit", script, "--partition", "none", *known.key, status=1)
    run = known.home / "run.yaml"
    run.write_text("preset: tiny\n")
    errors = known.podwright("submit", run, "--nodes", 1, *known.key, status=1)
    assert "the node has no environment of podwright-train" in errors


def test_nodes_are_drained_and_back_without_a_key(operator):
    """A drained node takes no job and shows its reason; undrained it takes jobs; no ssh key is involved."""
    node = worker(operator, 2)
    drained = json.loads(on_nodes(operator, "drain", "workers/2", "--reason", "it's slow | hot", "--json"))
    assert [(node["slurm_name"], node["slurm_reason"]) for node in drained["nodes"]] == [
        (node.hostname, "it's slow | hot")
    ]
    listed = json.loads(on_nodes(operator, "list", "--slurm", "--json"))["nodes"]
    states = {node["slurm_name"]: node["slurm_state"] for node in listed}
    assert states[node.hostname].startswith("drain")
    assert states[worker(operator).hostname] == "idle"
    assert states[operator.hosts.controller] == ""
    assert node.hostname in on_nodes(operator, "undrain", node.hostname)
    operator.hosts.wait_until_idle()
    errors = on_nodes(operator, "drain", "controller", status=2)
    assert "runs slurmctld and no jobs" in errors
    errors = on_nodes(operator, "drain", "workers/1", "--reason", "Action:Replace", status=2)
    assert "`podwright nodes replace --after-jobs`" in errors
    assert "Invalid node state" in on_nodes(operator, "undrain", "workers/1", status=1)


def replace_instance(operator, hostname):
    """Act as HyperPod on a node whose replacement SageMaker has begun: its new instance boots."""
    instance_id = next(node.instance_id for node in nodes(operator.aws) if node.hostname == hostname)
    assert instance_id != operator.hosts.nodes[hostname].instance_id
    scripts = operator.hosts.directory.parent / "lifecycle"
    result = operator.hosts.replace(hostname, instance_id=instance_id, lifecycle=scripts)
    assert result.ok, result.describe()


def submit_counting(operator, name, hostname):
    """Start a job of two nodes that counts into its folder, a file a step; return its number and the folder."""
    folder = operator.hosts.directory.parent / "fsx" / "runs" / name
    script = batch_script(
        operator,
        name,
        f"cd /fsx/runs/{name} || exit\n"
        "until [ -e over ]; do\n"
        "  step=$(($(ls | grep -c step) + 1))\n"
        "  srun --ntasks-per-node=1 hostname > partial 2> /dev/null && sort partial > sorted && mv sorted step-$step\n"
        "  sleep 0.3\n"
        "done",
    )
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    shutil.copy(script, folder)
    line = (
        f"sbatch --parsable --partition=gpu --requeue --nodelist={hostname} --nodes=2 --output=/dev/null "
        f"/fsx/runs/{name}/{name}.sbatch"
    )
    return int(operator.hosts.run(line).stdout), folder


def steps_of(folder):
    """Return the hosts of each step, by its number."""
    return {int(file.name.partition("-")[2]): tuple(file.read_text().split()) for file in folder.glob("step-*")}


def test_a_job_goes_on_when_its_node_is_replaced(operator):
    """By API its instance goes at once: the job is requeued and goes on after its last step, on the same two nodes."""
    name = worker(operator, 3).hostname
    job_id, folder = submit_counting(operator, "replaced", name)
    wait_for(lambda: 2 in steps_of(folder))
    pair = steps_of(folder)[1]
    assert f"{name}  workers/3" in on_nodes(operator, "replace", name, "--yes")
    replace_instance(operator, name)
    operator.hosts.wait_for_job(job_id, frozenset({"RUNNING"}), restarts=1)
    before = max(steps_of(folder))
    wait_for(lambda: before + 2 in steps_of(folder))
    (folder / "over").touch()
    done = finish(operator, job_id)
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1")
    taken = steps_of(folder)
    assert sorted(taken) == list(range(1, len(taken) + 1))
    assert taken[1] == pair
    assert all(len(set(hosts)) == 2 for hosts in taken.values()), taken
    operator.hosts.wait_until_idle()


def test_replacement_waits_for_the_job(operator):
    """With --after-jobs Slurm has exactly the reason that HyperPod acts on, and the job goes on to its end before."""
    job_id, folder = submit_counting(operator, "kept", worker(operator, 3).hostname)
    wait_for(lambda: 1 in steps_of(folder))
    name = worker(operator, 3).hostname
    on_nodes(operator, "replace", name, "--after-jobs", "--yes")
    (node,) = [
        node
        for node in json.loads(on_nodes(operator, "list", "--slurm", "--json"))["nodes"]
        if node["slurm_name"] == name
    ]
    assert (node["slurm_state"][:4], node["slurm_reason"]) == ("fail", "Action:Replace")  # failing where all is taken
    (job,) = json.loads(operator.podwright("status", "--jobs", "--json"))["jobs"]
    assert (job["job_id"], job["state"]) == (str(job_id), "RUNNING")
    assert " RUNNING " in operator.podwright("status", "--jobs")
    seen = max(steps_of(folder))
    wait_for(lambda: seen + 2 in steps_of(folder))
    (folder / "over").touch()
    done = finish(operator, job_id)
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "0")
    operator.aws.client("sagemaker").batch_replace_cluster_nodes(ClusterName=NAME, NodeIds=[node["instance_id"]])
    replace_instance(operator, name)
    operator.hosts.wait_until_idle()
    line = f"srun --partition=gpu --nodelist={name} hostname"
    assert operator.hosts.run(line).stdout.strip() == name


@pytest.fixture(scope="module")
def python(known):
    """A Python with torch, on the shared file system."""
    path = known.hosts.directory.parent / "fsx" / "python"
    interpreter = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    path.write_text(
        f'#!/bin/bash\nexport LD_LIBRARY_PATH={PYTHON}/lib PYTHONPATH={PACKAGES}\nexec {interpreter} "$@"\n'
    )
    path.chmod(0o755)
    return "/fsx/python"


@pytest.fixture
def trainer(known):
    """An environment of podwright-train on the shared file system, which the controller's record names."""
    environment = known.hosts.directory.parent / "fsx" / "trainer"
    programs = environment / "bin"
    programs.mkdir(parents=True)
    for package in ("training/podwright_training", "common/podwright_common"):
        shutil.copytree(CHECKOUT / package, environment / Path(package).name)
    start = f"#!/bin/bash\nexport PYTHONPATH={PACKAGES}:/fsx/trainer\nexec env LD_LIBRARY_PATH={PYTHON}/lib"
    interpreter = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for name, words in {"podwright-train": "-m podwright_training", "python": ""}.items():
        (programs / name).write_text(f'{start} {interpreter} {words} "$@"\n')
        (programs / name).chmod(0o755)
    record = NodeRecord(
        cluster_name=NAME, cluster_arn="", hostname="", instance_id="", instance_group="workers", role="compute",
        instance_type="ml.g5.12xlarge", partition="gpu", accelerator="gpu", accelerators_per_node=4,
        accelerator_name="A10G", efa_interfaces=1, shared_root="/fsx", environment="/fsx/trainer", wheel_sha256=None,
    )  # fmt: skip
    controller = {"host": known.hosts.controller, "user": "root"}
    write = f"mkdir -p {NODE_JSON.parent} && cat > {NODE_JSON} <<'END'\n{record.to_json()}END"
    known.hosts.run(write, **controller)
    yield
    known.hosts.run(f"rm {NODE_JSON}", **controller)
    shutil.rmtree(environment)


@pytest.mark.usefixtures("trainer")
def test_a_chain_of_jobs_is_one_run(known, request):
    """All jobs of NxD Training bear their run's name: it blocks a second one, shows their logs, and cancels them."""
    all_nodes = "sbatch --parsable --partition=gpu --nodes=3 --exclusive --output=/dev/null"
    held = known.hosts.run(f"{all_nodes} --wrap='sleep 999'").stdout.strip()
    request.addfinalizer(lambda: known.hosts.run(f"scancel {held}"))  # else the next test's jobs would wait for it
    run = known.home / "chain.yaml"
    run.write_text("preset: llama3_8b\ntrain_batch_size: 1\n")
    words = (run, "--nodes", 2, "--launch-arguments=--backend=nxdt --instance=ml.trn1.32xlarge", *known.key)
    chain = json.loads(known.podwright("submit", *words, "--json"))
    jobs = chain["jobs"]
    assert (list(jobs), chain["job_id"]) == (["environment", "dataset", "compile", "train"], jobs["train"])
    listed = json.loads(known.podwright("jobs", *known.key, "--json"))["jobs"]
    assert {job["job_id"] for job in listed if job["run"] == "chain"} == set(jobs.values())
    numbers = ", ".join(sorted(jobs.values(), key=int))
    assert f"run chain already has jobs {numbers}" in known.podwright("submit", *words, status=1)

    folder = known.hosts.directory.parent / "fsx" / "runs" / "chain"
    (folder / "nxdt" / "environment.log").write_text("made\n")
    assert known.podwright("logs", "chain", *known.key) == "made\n"
    hosts = folder.with_name("spread") / "elastic"  # of an elastic run the newest is shown
    hosts.mkdir(parents=True)
    for number, text in enumerate(("gone", "alive")):
        (hosts / f"host-{number}.log").write_text(f"{text}\n")
        os.utime(hosts / f"host-{number}.log", (number, number))
    assert known.podwright("logs", "spread", *known.key) == "alive\n"
    with known.start(*known.command("logs", "chain", "--follow", *known.key)) as process:
        wait_for(lambda: process.stdout.readline() == "made\n")
        (folder / "nxdt" / "train.log").write_text("step 1\n")  # of a job that had not begun
        wait_for(lambda: process.stdout.readline() == "step 1\n")
        printed = known.podwright("cancel", "chain", "--yes", *known.key)
        assert all(number in printed for number in jobs.values())
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 0, errors
    assert {finish(known, number)["JobState"] for number in jobs.values()} == {"CANCELLED"}

    events = [{"event": "start", "time": 0.0, "step": 0, "world_size": 2}]
    events += [{"event": "train", "time": 10.0 * step, "step": step, "loss": 2.0} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (folder / "metrics.jsonl").chmod(0o666)
    fetched = json.loads(known.podwright("fetch", "chain", "--export", *known.key, "--json"))
    assert fetched["usd_per_hour"] == pytest.approx(2 * on_demand("ml.g5.12xlarge", known.aws.region).usd_per_hour)
    assert "cost so far" in (known.home / "runs" / "chain" / "report" / "index.html").read_text()
    again = known.podwright("fetch", "chain", *known.key)
    assert "no model" not in again  # it is another trainer's


def validate(operator, python, *words, status=0):
    arguments = ("--python", python, "--file-mib", 4, "--group", "workers", "--json", *operator.key, *words)
    with operator.start(*operator.command("validate", *arguments)) as process:
        output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode in {0, status}, output + errors
    assert output, errors
    return json.loads(output)


def named(document):
    return [finding["path"] for finding in document["findings"] if finding["code"] == "slow-node"]


def test_validate_names_the_host_with_the_slow_network(known, python):
    """All pairs of three workers are measured; the one behind a slow cable is named, and the planner's file is left."""
    node = worker(known, 2)
    with Faults(known.hosts).slow_network(node.hostname, mbit_s=100):
        document = validate(known, python, "--output", "validate.json", status=1)
    assert named(document) == [f"nodes.{node.hostname}"], document
    assert json.loads((known.home / "validate.json").read_text()) == document
    measured = document["measurements"]
    assert {tuple(pair["nodes"]) for pair in measured["pairs"] if not pair["error"]} >= set(
        combinations(sorted(worker(known, number).hostname for number in (1, 2, 3)), 2)
    )
    assert all(node["write_mib_s"] and node["read_mib_s"] and not node["error"] for node in measured["nodes"])
    assert validate(known, python, "--of", document["folder"].rpartition("/")[2], status=1) == document


def test_validate_names_no_healthy_host(known, python):
    """Other programs that use all processors make no node slow in one run after another, as a fault does."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    suspects = {f"nodes.{worker(known, number).hostname}" for number in (1, 2, 3)}
    try:
        for _ in range(RUNS_OF_VALIDATE):
            suspects &= set(named(validate(known, python, status=1)))
            if not suspects:
                return
        pytest.fail(f"named by each of {RUNS_OF_VALIDATE} runs: {suspects}")
    finally:
        for process in busy:
            process.kill()
            process.wait()
