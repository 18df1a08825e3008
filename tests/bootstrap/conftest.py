"""Hosts to boot: real namespaces, files, mounts, locks, pip and ssh-keygen.

shims/ has what a host in a namespace lacks.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from podwright_bootstrap.boot import STEPS
from podwright_bootstrap.contract import TrainingPayload
from podwright_bootstrap.software.requirements import with_added
from tests.bootstrap.case import FAULTS

HERE = Path(__file__).resolve().parent
LIFECYCLE_SCRIPTS = HERE.parents[1] / "lifecycle_scripts"
CONTROLLER_ADDRESS = "10.1.0.10"
COMPUTE_ADDRESSES = ("10.1.0.5", "10.1.0.57", "10.1.0.6")
BOOT_TIMEOUT_S = 500  # 13 s as a rule; the machine may be busy
SLURM_CONF = """ClusterName=Test
SlurmctldHost=ip-10-1-0-10(10.1.0.10)
GresTypes=gpu
include accounting.conf
"""
# All of the host's processes end with unshare: to kill it is to switch the host off.
UNSHARE = ("unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
# Programs that are called by their whole name.
PLACES = {
    "mount.lustre": "usr/sbin",
    "mount.nfs": "usr/sbin",
    "lctl": "usr/sbin",
    "lnetctl": "usr/sbin",
    "modprobe": "usr/sbin",
    "scontrol": "opt/slurm/bin",
    "sacctmgr": "opt/slurm/bin",
    "nvidia-smi": "opt/slurm/bin",  # on the path of Slurm's programs, unlike the shims
    "fi_info": "opt/amazon/efa/bin",
    "neuron-ls": "opt/aws/neuron/bin",
}
# slurmctld's port, answered on the host itself: enter_host.sh leads the controller's address there.
LISTENING = """python3 -ISc 'import socket, time; s = socket.create_server(("", 6817)); time.sleep(600)' &>/dev/null &
trap "kill $!" EXIT"""


@dataclass
class Cloud:
    """The shared parts of a test's hosts: the file system, the bucket and the package index."""

    folder: Path
    contract: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (self.shared, self.homes, self.bucket, self.index):
            path.mkdir(parents=True)
        wheel = make_wheel(self.bucket, "podwright_training", requires="tinydep>=1")
        requirements = self.bucket / "requirements.lock"
        requirements.write_text(self.lock(make_wheel(self.index, "tinydep", version="1.0")))
        make_wheel(self.index, "tinydep", version="2.0")  # newer, but not what is locked
        for archive in uv_archives():
            os.link(archive, self.index / archive.name)
        self.contract = {
            "version": "1.0.0",
            "workload_manager": "slurm",
            "controller_group": "controller",
            "login_group": "login",
            "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
            "fsx_dns_name": "fs-0123.fsx.us-west-2.amazonaws.com",
            "fsx_mountname": "abcdefgh",
            "podwright": {
                "cluster_name": "test",
                "region": "us-west-2",
                "lustre_mount_path": "/mnt/fsx",
                "instance_facts": {
                    "workers": {
                        "accelerator": "gpu",
                        "accelerators_per_node": 4,
                        "accelerator_name": "A10G",
                        "efa_interfaces": 1,
                    }
                },
                "nodes": {},
                "accounting": {"endpoint": "", "port": 3306, "secret_arn": ""},
                "training": {
                    "wheel_s3_uri": f"s3://sagemaker-test/{wheel.name}",
                    "wheel_sha256": sha256(wheel),
                    "requirements_s3_uri": "s3://sagemaker-test/requirements.lock",
                    "requirements_sha256": sha256(requirements),
                },
            },
        }

    @property
    def shared(self) -> Path:
        """The folder that stands in for FSx for Lustre."""
        return self.folder / "fsx"

    @property
    def homes(self) -> Path:
        """The folder that stands in for FSx for OpenZFS."""
        return self.folder / "homes"

    @property
    def bucket(self) -> Path:
        """The folder that stands in for S3."""
        return self.folder / "bucket"

    @property
    def index(self) -> Path:
        """The folder of wheels, as pip is configured."""
        return self.folder / "index"

    @property
    def environment(self) -> Path:
        """The environment's folder, as named by the hashes."""
        training = self.contract["podwright"]["training"]
        name = TrainingPayload(**training).environment_name()
        return self.shared / "podwright" / "environments" / name

    def replace_lock(self, text: str) -> None:
        """Deploy with other locked requirements."""
        (self.bucket / "requirements.lock").write_text(text)
        self.contract["podwright"]["training"]["requirements_sha256"] = sha256(self.bucket / "requirements.lock")

    def add_package(self, name: str) -> None:
        """Deploy with a package that cluster.yaml adds."""
        added = self.lock(make_wheel(self.index, name, version="1.0"))
        self.replace_lock(with_added((self.bucket / "requirements.lock").read_text(), added))

    @staticmethod
    def lock(wheel: Path) -> str:
        """A lock of one package, in the layout of `uv export`."""
        name, version = wheel.name.split("-")[:2]
        return f"{name}=={version} ; sys_platform == 'linux' \\\n    --hash=sha256:{sha256(wheel)}\n"


@dataclass
class Boot:
    """The result of a boot."""

    exit_code: int
    output: str

    @property
    def failures(self) -> list[str]:
        """The lines that say that a boot failed."""
        return [line for line in self.output.splitlines() if " FAILED on " in line or line.startswith("FAILED on ")]

    @property
    def warnings(self) -> list[str]:
        """The lines that say what the node goes without."""
        return [line for line in self.output.splitlines() if re.search(r" WARNING on \S+ at step ", line)]

    @property
    def results(self) -> dict[str, Any]:
        """The steps' JSON lines by step."""
        events = [json.loads(line) for line in self.output.splitlines() if line.startswith('{"event"')]
        return {event["step"]: event for event in events}

    @property
    def summaries(self) -> list[str]:
        """The last line of each table."""
        return re.findall(r"^\d+ steps, .*$", self.output, flags=re.MULTILINE)


@dataclass
class Host:
    """One host with a disk of its own; it is on while a command runs on it."""

    cloud: Cloud
    folder: Path
    role: str = "compute"
    address: str = COMPUTE_ADDRESSES[0]
    patience: float = 0.2
    step_patience: float = 1
    covered: str = "etc usr/sbin"  # folders whose own files it may change
    instance_type: str = "ml.g5.12xlarge"  # of the workers

    def __post_init__(self) -> None:
        if self.role == "controller":
            self.address = CONTROLLER_ADDRESS
        self.name = "ip-" + self.address.replace(".", "-")
        self.disk = self.folder / f"disk-{self.name}"
        for name in ("etc/ssh", "opt/ml/config", "opt/slurm/bin", "opt/slurm/etc", "home/ubuntu", "usr/sbin", "mnt"):
            (self.disk / name).mkdir(parents=True)
        os.chown(self.disk / "home/ubuntu", 1000, 1000)
        users = [line for line in Path("/etc/passwd").read_text().splitlines() if ":1000:" not in line]
        users += ["ubuntu:x:1000:1000::/home/ubuntu:/bin/bash", "slurm:x:401:401::/nonexistent:/usr/sbin/nologin"]
        self.write("etc/passwd", "\n".join(users) + "\n")
        self.write("etc/fstab", "# nothing yet\n")
        self.write("opt/ml/config/resource_config.json", json.dumps(self.resource_config()))
        key = self.disk / "etc/ssh/ssh_host_ed25519_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        if self.role == "controller":
            self.write("opt/slurm/etc/slurm.conf", SLURM_CONF)
        shutil.copytree(HERE / "shims", self.shims)
        # With the checkout's bytecode, which each host would else compile; another process may be writing some of it.
        shutil.copytree(LIFECYCLE_SCRIPTS, self.scripts, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
        self._use_uv_of_the_tests()
        self.write("opt/scripts/provisioning_parameters.json", json.dumps(self.cloud.contract))

    def _use_uv_of_the_tests(self) -> None:
        """Name this machine's uv in the manifest: the published archives need a network."""
        wheel, release = uv_archives()
        path = self.scripts / "podwright_bootstrap/software/downloads.json"
        manifest = json.loads(path.read_text())
        machine = platform.machine()
        manifest["uv"]["wheels"] = {machine: {"filename": wheel.name, "sha256": uv_checksum(wheel)}}
        manifest["uv"]["files"] = {
            machine: {"url": f"http://127.0.0.1:8000/{release.name}", "sha256": uv_checksum(release)}
        }
        path.write_text(json.dumps(manifest))

    @property
    def shims(self) -> Path:
        """First on the PATH."""
        return self.disk / "opt/shims"

    @property
    def scripts(self) -> Path:
        """The host's copy of the lifecycle scripts."""
        return self.disk / "opt/scripts"

    @property
    def calls(self) -> list[str]:
        """The command lines that the shims recorded."""
        log = self.disk / "opt/calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file on the disk."""
        (self.disk / path).parent.mkdir(parents=True, exist_ok=True)
        (self.disk / path).write_text(text)
        (self.disk / path).chmod(mode)

    def read(self, path: str) -> str:
        """A file's text."""
        return (self.disk / path).read_text()

    def resource_config(self) -> dict[str, Any]:
        """The service's file, for one controller and all compute addresses; a login host has a group of its own."""

        def group(name: str, instance_type: str, addresses: list[str]) -> dict[str, Any]:
            instances = [{"InstanceId": f"i-{a}", "CustomerIpAddress": a, "InstanceName": "x"} for a in addresses]
            return {"Name": name, "InstanceType": instance_type, "Instances": instances or None}

        login = [self.address] if self.role == "login" else []
        workers = [address for address in COMPUTE_ADDRESSES if address not in login]
        return {
            "ClusterConfig": {"ClusterName": "test", "ClusterArn": "arn:aws:sagemaker:us-west-2:1:cluster/x"},
            "InstanceGroups": [
                group("controller", "ml.m5.xlarge", [CONTROLLER_ADDRESS]),
                group("login", "ml.m5.xlarge", login),
                group("workers", self.instance_type, workers),
            ],
        }

    def start(self, commands: str) -> subprocess.Popen[str]:
        """Switch the host on and run bash commands there, as root in the scripts' folder."""
        for program, folder in PLACES.items():
            (self.disk / folder).mkdir(parents=True, exist_ok=True)
            if (self.shims / program).exists():  # a case may take it away
                shutil.copy2(self.shims / program, self.disk / folder / program)
        environment = {
            "PATH": "/opt/shims:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "COVERED": self.covered,
            "PODWRIGHT_PATIENCE": str(self.patience),
            "PODWRIGHT_STEP_PATIENCE": str(self.step_patience),
            "SHARED_FOLDER": str(self.cloud.shared),
            "HOMES_FOLDER": str(self.cloud.homes),
            "BUCKET_FOLDER": str(self.cloud.bucket),
            "AWS_EC2_METADATA_DISABLED": "true",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "INDEX_FOLDER": str(self.cloud.index),
            "PYTHON_FOLDER": sys.base_prefix,
            "PIP_FIND_LINKS": "/opt/index",
            "ENVIRONMENT": f"/mnt/fsx/{self.cloud.environment.relative_to(self.cloud.shared)}",
        }
        if not (self.shims / "python3").is_symlink():
            (self.shims / "python3").symlink_to(f"/opt/python/bin/{Path(sys.executable).resolve().name}")
        entry = (str(HERE / "enter_host.sh"), str(self.disk), self.name, self.address, CONTROLLER_ADDRESS)
        return subprocess.Popen(
            [*UNSHARE, *entry, "bash", "-c", f"cd /opt/scripts\n{commands}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, commands: str, *, timeout_s: float = BOOT_TIMEOUT_S) -> Boot:
        """Run commands on the host and wait for their end."""
        return finish(self.start(commands), timeout_s=timeout_s)

    def start_boot(self, commands: str = "./on_create.sh") -> subprocess.Popen[str]:
        """Begin to boot in a cluster whose controller listens; `finish` waits for the end."""
        return self.start(f"{LISTENING}\n{commands}")

    def boot(
        self, commands: str = "./on_create.sh", *, controller_listens: bool = True, timeout_s: float = BOOT_TIMEOUT_S
    ) -> Boot:
        """Run commands, a boot by default, on the host of a cluster whose controller listens."""
        return self.run(f"{LISTENING if controller_listens else ''}\n{commands}", timeout_s=timeout_s)

    def switch_off(self, process: subprocess.Popen[str]) -> None:
        """End the host at once, with all that runs on it."""
        process.kill()
        process.communicate()

    def replace(self) -> None:
        """Put a new instance in its place: same name, empty disk."""
        shutil.rmtree(self.disk)
        self.__post_init__()


def finish(process: subprocess.Popen[str], *, timeout_s: float = BOOT_TIMEOUT_S) -> Boot:
    """Wait for the end of a host's commands; a boot that hangs fails the test."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            process.kill()
    return Boot(process.returncode, output)


def sha256(path: Path) -> str:
    """The file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


uv_checksum = cache(sha256)  # of files that stay


@cache
def uv_archives() -> tuple[Path, Path]:
    """Pack this machine's uv as its wheel and its release do, once for all tests."""
    program = Path(find_uv_bin())
    folder = Path(tempfile.mkdtemp(prefix="podwright-uv-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wheel, release = folder / "uv-0-py3-none-any.whl", folder / "uv-test.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(program, "uv-0.data/scripts/uv")
    with tarfile.open(release, "w") as archive:
        archive.add(program, "uv-test/uv")
    return wheel, release


def make_wheel(
    folder: Path, name: str, *, version: str = "1.0", requires: str = "", code: str = "", pth: str = ""
) -> Path:
    """A real wheel of one package."""
    info = f"{name}-{version}.dist-info"
    requirement = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if pth:
        files[f"{name}.pth"] = pth
    record = "".join(f"{path},{_record_hash(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def _record_hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the matrix fault x step of the cases that ran: what each fault does to a boot at each step."""
    cells: dict[tuple[str, str], list[str]] = {}
    for result in ("passed", "failed"):
        for report in terminalreporter.getreports(result):
            for name, cell in report.user_properties:
                if name == "cell" and report.when == "call":
                    step, fault, outcome = cell
                    cells.setdefault((step, fault), []).append(outcome if result == "passed" else "WRONG")
    if cells:
        terminalreporter.section("fault x step")
        terminalreporter.write_line(matrix(cells))


def matrix(cells: dict[tuple[str, str], list[str]]) -> str:
    """A row per step, a column per fault; the number is that of cases, where there are several of one outcome."""
    steps = [*("identity", *(step.name for step in STEPS), "report")]
    rows = [["", *FAULTS]]
    for step in steps:
        outcomes = [Counter(cells.get((step, fault), ())) for fault in FAULTS]
        rows.append([step, *(" + ".join(f"{n if n > 1 else ''} {o}".strip() for o, n in c.items()) for c in outcomes)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    cases = sum(map(len, cells.values()))
    legend = (
        "boots: at once, after waiting, or after the power was cut in the middle; warns: goes without something; "
        "one line: stops and says why"
    )
    return "\n".join([*lines, f"{len(cells)} cells, {cases} cases. {legend}. No part of a file is left by any."])


@pytest.fixture(name="finish")
def _finish() -> Callable[[subprocess.Popen[str]], Boot]:
    """Waits for the end of a host's commands."""
    return finish


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """A shared file system, a bucket with the training payload, and a package index."""
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def make_host(cloud: Cloud, tmp_path: Path) -> Callable[..., Host]:
    """Makes hosts of one cluster."""
    _need_root()
    return lambda **options: Host(cloud, tmp_path, **options)


@pytest.fixture(scope="module")
def make_shared_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Host]:
    """Makes hosts that a module's tests share; each has a cloud of its own."""
    _need_root()

    def make(**options: Any) -> Host:
        folder = tmp_path_factory.mktemp("host")
        return Host(Cloud(folder / "cloud"), folder, **options)

    return make


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.fail("hosts in namespaces need root: run as root, or leave them out with -m 'not hosts'")


@pytest.fixture(scope="session")
def fetch_packages(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gets what apt needs to install packages on a host without a network: see install.sh."""

    def fetch(*names: str) -> Path:
        folder = tmp_path_factory.mktemp("packages")
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True)
        options = [
            *("-o", f"Dir::State::lists={folder}/lists"),
            *("-o", f"Dir::Cache::archives={folder}/archives"),
            *("-o", "APT::Sandbox::User=root"),
            *("-o", "Debug::NoLocking=true"),  # nothing is installed; another worker may download at the same time
        ]
        apt = ["apt-get", "-qq", "-y", "--no-install-recommends", *options]
        for command in (["update"], ["install", "--download-only", *names]):
            subprocess.run([*apt, *command], check=True, timeout=500)
        return folder

    return fetch
