"""The files that constructs write for nodes, and nodes for jobs.

One class writes and reads ``provisioning_parameters.json``, one ``node.json``; every path both sides know is here.

Where HyperPod sets Slurm up from the API, the parameters are ``podwright_parameters.json``: AWS refuses a
``provisioning_parameters.json`` there.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from podwright_bootstrap.features import FOLLOWED, NodeFeatures, build

# Written by the service before any script runs.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-lifecycle.html
RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
RESOURCE_CONFIG_VARIABLE = "SAGEMAKER_RESOURCE_CONFIG_PATH"
PROVISIONING_PARAMETERS_NAME = "provisioning_parameters.json"
PROVISIONING_PARAMETERS = RESOURCE_CONFIG.parent / PROVISIONING_PARAMETERS_NAME
# In its place where HyperPod sets Slurm up from the API: AWS refuses its own name beside scripts, and uses it on nodes.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config-migration.html
API_PARAMETERS_NAME = "podwright_parameters.json"
API_PARAMETERS = RESOURCE_CONFIG.parent / API_PARAMETERS_NAME
USERS_NAME = "users.json"  # in the bucket: what nodes follow while they run
PROVISIONING_LOG = Path("/var/log/provision/provisioning.log")

STATE_DIRECTORY = Path("/opt/podwright")
NODE_JSON = STATE_DIRECTORY / "node.json"
LOGIN_ADMINS = STATE_DIRECTORY / "pam_slurm_adopt.admins"  # who may be on a compute node without a job
BOOTSTRAP_JSON = STATE_DIRECTORY / "bootstrap.json"  # how the last boot went, step by step

# Below the shared file system's mount path.
SHARED_DIRECTORY = "podwright"  # ours: environments, keys, locks
ENVIRONMENTS_DIRECTORY = "podwright/environments"  # one virtual environment per content, Python and machine
CURRENT_ENVIRONMENT = f"current-{platform.machine()}"  # a link to the one that compute nodes of this machine have
KEYS_DIRECTORY = "podwright/ssh"
SECRETS_DIRECTORY = "podwright/secrets"  # root's alone: what controllers may ask AWS for, and other nodes need
FAILURES_DIRECTORY = "podwright/failures"  # root's alone: why a controller's boot failed, for nodes that wait for it
LAYERS_DIRECTORY = "podwright/enroot"  # layers of container images, a folder for each user
DOWNLOADS_DIRECTORY = ".cache/podwright"  # programs, each fetched once
RUNS_DIRECTORY = "runs"  # one folder per training run
HOMES_DIRECTORY = "home"  # people's, where there is no OpenZFS for them
DATA_DIRECTORY = "data"  # the data that runs read

SLURM_ROOT = Path("/opt/slurm")
LOGIN_NODE_REASON = "podwright: login node"  # the reason in Slurm why a login node gets no jobs
# slurmctld's reason for a node that it has put down because of a reboot that Slurm had not ordered. With HyperPod's
# ReturnToService=1 such a node stays down. A reason that somebody has given before stays, too.
REBOOT_REASON = "Node unexpectedly rebooted"
# Without accounting, Slurm 24.11 keeps the reason of a node that is resumed, and shows it when the node goes down
# later. It accepts no empty one.
NO_REASON = "none"
BEING_SET_UP = "podwright: being set up"  # the reason in Slurm of a node that its boot has not finished
# What Slurm adds to a reason of before. ReturnToService=1 compares the whole, so such a node does not return by itself.
SILENCE = " : Not responding"
REBOOTS = tuple(f" : reboot {state}" for state in ("requested", "issued", "complete", "timed out"))
METRICS_NAMESPACE = "/aws/sagemaker/Clusters"  # the one that the nodes' role may write to
RUNNING_JOBS_METRIC = "RunningJobs"
CLUSTER_DIMENSION = "ClusterName"
FIRST_USER_ID = 1000  # lower ids are those of the system's own users and groups
JOB_USER = "ubuntu"  # a user of HyperPod's image, who owns the runs

# Roles of a node.
CONTROLLER = "controller"
LOGIN = "login"
COMPUTE = "compute"

# AWS's agent ignores keys that it does not know; all of ours are below this one.
OWN_KEY = "podwright"
VERSION = "1.0.0"
WRITTEN_IF_EMPTY = {"written_if_empty": True}  # metadata of a field whose key nodes expect in any case


def _aws(key: str) -> Dict[str, str]:
    """Return the metadata of a field that has a key of AWS's in the file."""
    return {"aws": key}


def is_reason_of_slurm(reason: str) -> bool:
    """Return whether a node that is down with this reason was in service until Slurm itself put it down.

    Slurm keeps the reason of before, if there is one.
    """
    return reason_given(reason) in {REBOOT_REASON, NO_REASON, BEING_SET_UP} or reason.endswith(SILENCE)


def reason_given(reason: str) -> str:
    """Return the reason that was given for a node's state, without what Slurm has added to it since."""
    additions = (SILENCE, *REBOOTS)
    while reason.endswith(additions):
        reason = reason.rpartition(" : ")[0]
    return reason


class ContractError(ValueError):
    """The file lacks facts that this version of podwright needs; the message lists every problem."""


@dataclass(frozen=True)
class WorkerGroup:
    """One instance group of Slurm compute nodes and the partition they join."""

    instance_group_name: str
    partition_name: str


@dataclass(frozen=True)
class InstanceFacts:
    """The hardware of a node's instance type, from the catalog: the bootstrap checks it, the sbatch uses it."""

    accelerator: str = ""  # "" | "gpu" | "neuron"
    accelerators_per_node: int = 0
    accelerator_name: str = ""  # "A10G", "H100", …
    efa_interfaces: int = 0
    vcpus: int = 0
    memory_gib: float = 0
    nvlink: bool = False  # between the GPUs of one node
    nvme_disks: int = 0  # the disks of its instance storage


@dataclass(frozen=True)
class TrainingPayload:
    """The S3 URIs and SHA-256 of the training wheel and its locked requirements."""

    wheel_s3_uri: str
    wheel_sha256: str
    requirements_s3_uri: str
    requirements_sha256: str

    def environment_name(self) -> str:
        """Return the name of the virtual environment built from exactly this payload, for this Python and machine.

        An image that moves to another Python gets an environment of its own: an older one would not start there.
        """
        python = f"py{sys.version_info.major}.{sys.version_info.minor}"
        return f"{self.wheel_sha256[:12]}-{self.requirements_sha256[:12]}-{python}-{platform.machine()}"


@dataclass(frozen=True)
class Accounting:
    """The database that slurmdbd keeps jobs in: a MariaDB of the controller's own, unless it has an endpoint."""

    endpoint: str  # host name
    port: int
    secret_arn: str  # the Secrets Manager secret with its username and password
    certificates: str = ""  # PEM of the authorities of its certificate: slurmdbd connects with TLS
    makes_user: bool = False  # the secret is an administrator's, who makes slurmdbd a user of its own


@dataclass(frozen=True)
class MultiHead:
    """The database and folder that several controllers share: AWS's ``slurm_configurations``.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-multihead-slurm-setup.html
    """

    slurm_database_secret_arn: str
    slurm_database_endpoint: str
    slurm_shared_directory: str
    slurm_sns_arn: Optional[str] = None

    def to_dict(self) -> Dict[str, str]:
        """The keys that hold something."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ClusterGroups:
    """A cluster's name, its instance groups by role, and their hardware."""

    cluster_name: str
    controller_group: str = field(metadata=_aws("controller_group"))
    worker_groups: List[WorkerGroup] = field(metadata=_aws("worker_groups"))
    login_group: Optional[str] = field(default=None, metadata=_aws("login_group"))
    more_login_groups: List[str] = field(default_factory=list)  # AWS's file names one
    # Each instance group's hardware, by the group's name.
    instance_facts: Dict[str, InstanceFacts] = field(default_factory=dict, metadata=WRITTEN_IF_EMPTY)


@dataclass(frozen=True)
class ClusterFacts:
    """The facts that a stack decides and nodes get unchanged: a new one is a field here and its value in the stack."""

    nodes: NodeFeatures = field(default_factory=NodeFeatures)
    multi_head: Optional[MultiHead] = field(default=None, metadata=_aws("slurm_configurations"))
    slurm_by_api: bool = False  # HyperPod has set Slurm up and mounted file systems before any script runs
    auto_resume: bool = True  # HyperPod may replace nodes and resume jobs
    publishes_running_jobs: bool = False  # the controller publishes their number as a CloudWatch metric


@dataclass(frozen=True)
class ProvisioningParameters(ClusterFacts, ClusterGroups):
    """The content of ``provisioning_parameters.json``.

    A field is a key below ``OWN_KEY``, unless its metadata names the key at the top that AWS's agent reads. An empty
    value is left out where the default is empty, unless the metadata says otherwise. String values may be Terraform
    references while the constructs write them.
    """

    fsx_dns_name: Optional[str] = field(default=None, metadata=_aws("fsx_dns_name"))
    fsx_mountname: Optional[str] = field(default=None, metadata=_aws("fsx_mountname"))
    fsx_openzfs_dns_name: Optional[str] = field(default=None, metadata=_aws("fsx_openzfs_dns_name"))
    region: str = field(default="", metadata=WRITTEN_IF_EMPTY)
    lustre_mount_path: str = "/fsx"
    lustre_efa: bool = False  # whether the file system can be reached over EFA
    openzfs_mount_path: str = "/home"
    training: Optional[TrainingPayload] = None
    accounting: Optional[Accounting] = None
    bundle_s3_uri: str = ""  # `podwright bundle --upload` puts files there
    prometheus_remote_write_url: str = ""
    users_s3_uri: str = ""  # the object USERS_NAME
    hooks_s3_uri: str = ""  # the prefix of the scripts of nodes.hooks, which are named by their SHA-256
    hook_sha256: Dict[str, str] = field(default_factory=dict)  # SHA-256 by script

    @property
    def login_groups(self) -> List[str]:
        """The instance groups of login nodes."""
        return [*([self.login_group] if self.login_group else []), *self.more_login_groups]

    @property
    def file_name(self) -> str:
        """The name of the file, in the bucket and on nodes."""
        return API_PARAMETERS_NAME if self.slurm_by_api else PROVISIONING_PARAMETERS_NAME

    def facts_of(self, group: str) -> InstanceFacts:
        """Return the hardware of an instance group; empty for a group without facts."""
        return self.instance_facts.get(group, InstanceFacts())

    def to_dict(self) -> Dict[str, Any]:
        """Return a plain dictionary in the file's layout; keys with empty values are left out."""
        content: Dict[str, Any] = {"version": VERSION, "workload_manager": "slurm"}
        section: Dict[str, Any] = {}
        for item in fields(self):
            value = _plain(getattr(self, item.name))
            if "aws" in item.metadata:
                content.update({item.metadata["aws"]: value} if value is not None else {})
            elif value or _default(item) or item.metadata == WRITTEN_IF_EMPTY:
                section[item.name] = value
        return {**content, OWN_KEY: section}

    @classmethod
    def from_json(cls, text: str) -> ProvisioningParameters:
        """Read the file's text.

        Raises:
            ContractError: not JSON, or keys are missing or of another type; all of them are named.
        """
        content = _object(text, PROVISIONING_PARAMETERS_NAME)
        section = content.get(OWN_KEY) or {}
        if not isinstance(section, dict):
            got = type(section).__name__
            raise ContractError(f"{PROVISIONING_PARAMETERS_NAME}: {OWN_KEY}: got {got}, need an object")
        missing = [key for key in ("controller_group", "worker_groups") if key not in content]
        missing += [f"{OWN_KEY}.{key}" for key in ("cluster_name",) if key not in section]
        fsx = ("fsx_dns_name", "fsx_mountname")  # both or neither
        named = [key for key in fsx if content.get(key) is not None]
        missing += [key for key in fsx if named and key not in named]
        if missing:
            raise ContractError(
                f"{PROVISIONING_PARAMETERS_NAME} lacks {', '.join(missing)}: "
                "it was not written by this version of podwright's constructs; deploy the cluster stack again"
            )
        aws_keys = {item.name: item.metadata["aws"] for item in fields(cls) if "aws" in item.metadata}
        aws_values = {name: content[key] for name, key in aws_keys.items() if key in content}
        features = _features(section.get("nodes", {}))
        # A key of ours that this version does not know is a newer writer's, and null is an empty value.
        values = {key: value for key, value in section.items() if key not in {*aws_keys, "nodes"} and value is not None}
        parameters: ProvisioningParameters = _build(cls, {**values, **aws_values}, PROVISIONING_PARAMETERS_NAME)
        return replace(parameters, nodes=features)


def _default(item: Any) -> Any:
    """Return a field's default as JSON has it; ``MISSING``, which is true, for a required field."""
    return _plain(item.default if item.default_factory is MISSING else item.default_factory())


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    if isinstance(value, (MultiHead, NodeFeatures)):
        return value.to_dict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def parameters_of_this_node() -> ProvisioningParameters:
    """Read this node's file; raises ``ContractError`` or ``OSError``."""
    return ProvisioningParameters.from_json(read(installed_parameters()))


def record_of_this_node() -> NodeRecord:
    """Read this node's file; raises ``ContractError`` or ``OSError``."""
    return NodeRecord.from_json(read(NODE_JSON))


def installed_parameters() -> Path:
    """Return this node's file, as its last boot installed it."""
    return API_PARAMETERS if API_PARAMETERS.exists() else PROVISIONING_PARAMETERS


def read(path: Path) -> str:
    """Return a file's text.

    Raises:
        ContractError: it is not UTF-8.
        OSError: it does not open.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ContractError(f"{path.name} is not UTF-8: {error}") from error


def with_users(text: str, users: str) -> str:
    """Return the text of ``provisioning_parameters.json`` with the users, groups and policy of ``USERS_NAME``'s text.

    Raises:
        ContractError: a file lacks facts that this version needs.
    """
    content, followed = _object(text, PROVISIONING_PARAMETERS_NAME), _object(users, USERS_NAME)
    unknown = sorted(set(followed) - set(FOLLOWED))
    if unknown:
        raise ContractError(f"{USERS_NAME} does not know {', '.join(unknown)}: run `podwright update-software`")
    ProvisioningParameters.from_json(text)  # raises where it is not ours
    section: Dict[str, Any] = content[OWN_KEY]
    unchanged = {name: value for name, value in section.get("nodes", {}).items() if name not in FOLLOWED}
    section["nodes"] = {**unchanged, **followed}
    changed = json.dumps(content)
    ProvisioningParameters.from_json(changed)
    return changed


@dataclass(frozen=True)
class NodeRecord:
    """The content of ``node.json``: the node's identity, and facts that jobs may rely on."""

    cluster_name: str
    cluster_arn: str
    hostname: str
    instance_id: str
    instance_group: str
    instance_type: str
    role: str  # CONTROLLER | LOGIN | COMPUTE
    partition: Optional[str]
    accelerator: str
    accelerators_per_node: int
    accelerator_name: str
    efa_interfaces: int
    shared_root: str  # mount path of the shared file system, "" without one
    environment: Optional[str]  # the virtual environment jobs run in; on nodes that run none, the link to it
    wheel_sha256: Optional[str]
    # By partition, what a job finds there: jobs are submitted on nodes that have no accelerators of their own.
    partitions: Dict[str, InstanceFacts] = field(default_factory=dict)

    def to_json(self) -> str:
        """Text of the file, stable key order."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeRecord:
        """Read the file's text; raises ``ContractError`` that lists missing keys."""
        record: NodeRecord = _build(cls, _object(text, NODE_JSON.name), NODE_JSON.name)
        return record


def _object(text: str, name: str) -> Dict[str, Any]:
    """Read a JSON object; ``ContractError`` names the file that holds something else."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ContractError(f"{name}: got {type(content).__name__}, need an object")
    return content


def _refuse_constant(name: str) -> None:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(f"{name} is not a JSON number")


def _features(content: Any) -> NodeFeatures:
    """Read the features; one that this version does not know is refused, because no step would set it up."""
    try:
        return NodeFeatures.from_dict(content)
    except TypeError as error:
        raise ContractError(
            f"{PROVISIONING_PARAMETERS_NAME}: {OWN_KEY}.nodes: {error}: deploy the cluster stack again"
        ) from error


def _build(cls: Any, content: Mapping[str, Any], name: str) -> Any:
    """Make a dataclass of a file's content; unknown keys are a newer writer's and left alone."""
    try:
        return build(cls, content)
    except TypeError as error:
        raise ContractError(f"{name}: {error}") from error
