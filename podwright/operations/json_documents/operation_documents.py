"""The JSON documents of commands that deploy, or work on a cluster."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, RootModel

from podwright.operations.json_documents.base_document import Document, Finding
from podwright_training.validation.measurements import Measurements

# ---- the folder and its programs ---------------------------------------------------------------


class Init(Document):
    """The document of `podwright init --json`."""

    kind: Literal["podwright.init/1"] = Field(alias="schema")
    written: list[str]
    """Files."""
    example: str | None
    """The example that was copied."""
    answers: dict[str, str]
    usd_per_hour: float | None
    """Of the nodes; null where EC2 publishes no price."""
    next: list[str]
    """Commands."""


class Setup(Document):
    """The document of `podwright setup --json`: the path of each program."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)
    kind: Literal["podwright.setup/1"] = Field(alias="schema")


class _BundledFile(Document):
    sha256: str
    bytes: int


class _Uploaded(Document):
    """Place of the bundle, and the number of its objects that were not there before."""

    to: str
    objects: int


class Bundle(Document):
    """The document of `podwright bundle --json`."""

    kind: Literal["podwright.bundle/1"] = Field(alias="schema")
    index: str
    """The file that lists the bundle."""
    files: dict[str, _BundledFile]
    uploaded: _Uploaded | None
    nodes_look_there: bool
    """False until cluster.yaml has `nodes.downloads` with the source `bundle`."""


# ---- deployments -------------------------------------------------------------------------------


class Outputs(RootModel[dict[Literal["foundation", "cluster"], dict[str, Any]]]):
    """The document of `podwright outputs --json`: the outputs of each stack; empty where it is not deployed."""


class Align(Document):
    """The document of `podwright align --json`."""

    kind: Literal["podwright.align/1"] = Field(alias="schema")
    changed: bool
    """Whether Terraform's state was another than AWS's cluster."""


class _Orphan(Document):
    """A resource in AWS that no state knew."""

    outcome: Literal["adopted", "adoptable", "gone", "left"]
    arn: str
    address: str | None
    """In Terraform; null if no plan has it."""
    text: str
    """What became of it, and what to do."""


class Adopt(Document):
    """The document of `podwright adopt --json`."""

    kind: Literal["podwright.adopt/1"] = Field(alias="schema")
    applied: bool
    orphans: list[_Orphan]


class _Change(Document):
    """A resource that changes."""

    stack: str
    verb: Literal["create", "update", "replace", "destroy"]
    path: str
    """Of the construct, in its stack."""
    type: str
    """Terraform's."""
    keys: list[str]
    """The arguments that differ, where it is updated or replaced."""


class Deploy(Document):
    """The document of `podwright deploy --json`; with `--dry-run` the last three keys are missing."""

    kind: Literal["podwright.deploy/1"] = Field(alias="schema")
    cluster: str
    region: str
    changes: list[_Change]
    usd_per_hour: float
    nodes_usd_per_hour: float
    kept_usd_per_month: float
    """Cost of the resources that stay when the cluster is destroyed and the foundation kept."""
    unpriced: list[str]
    seconds: int = 0
    outputs: Outputs | dict[str, Any] = Field(default_factory=dict)
    next: list[str] = Field(default_factory=list)


class _Leftover(Document):
    """A resource that still costs money, or keeps the network from being deleted."""

    kind: str
    id: str
    detail: str
    usd_per_hour: float | None
    """null where it is not known."""
    delete: str
    """The command of the AWS CLI that deletes it."""


class Teardown(Document):
    """The document of `podwright teardown --json`, in the order in which to delete."""

    kind: Literal["podwright.teardown/1"] = Field(alias="schema")
    cluster: str
    leftovers: list[_Leftover] = Field(alias="left")
    usd_per_hour: float
    free: list[str]
    """ARNs of resources that cost nothing alone."""
    unanswered: list[str]
    """What AWS did not list, and why."""


class Destroy(Teardown):
    """The document of `podwright destroy --json`: the remaining resources."""

    kind: Literal["podwright.destroy/1"] = Field(alias="schema")  # type: ignore[assignment]
    kept_bucket: bool | str | None


class State(Document):
    """The document of `podwright state --json`."""

    kind: Literal["podwright.state/1"] = Field(alias="schema")
    bucket: str
    created: bool
    moved: list[str]
    """Keys of the states in the bucket."""


class Policy(Document):
    """The document of `podwright policy --json`."""

    kind: Literal["podwright.policy/1"] = Field(alias="schema")
    policy: dict[str, Any]
    """For `aws iam create-policy --policy-document`."""
    missing: list[str]
    """Actions that the role of `--simulate` lacks."""


class Export(Document):
    """The document of `podwright export --json`."""

    kind: Literal["podwright.export/1"] = Field(alias="schema")
    output: str
    request: dict[str, Any]
    """Of sagemaker:CreateCluster."""
    not_uploaded: list[str]
    """Terraform's addresses of objects that the bucket lacks."""


class Import(Document):
    """The document of `podwright import --json`."""

    kind: Literal["podwright.import/1"] = Field(alias="schema")
    cluster: str
    region: str
    arn: str
    file: str
    choices: list[str]
    not_managed: list[str]
    """What every update keeps as it is."""
    next: list[str]


class _Tie(Document):
    """A key that is another in the new place."""

    key: str
    before: Any
    after: Any


class _MovedFileSystem(Document):
    id: str
    section: Literal["lustre", "openzfs"]
    gib: int


class _MovePreview(Document):
    """Changes and costs of a move."""

    changes: list[_Tie]
    file_systems: list[_MovedFileSystem]
    file_systems_usd_per_hour: float | None
    nodes_usd_per_hour: float | None
    transfer_usd_at_most: float


class _Place(Document):
    name: str
    region: str
    file: str


class _Journal(Document):
    """Progress of a move; `done` has the time of each step."""

    kind: str = Field(alias="schema")
    id: str
    old: _Place
    new: _Place
    done: dict[str, str]
    facts: dict[str, Any]


class Move(Document):
    """The document of `podwright move --json`."""

    kind: Literal["podwright.move/1"] = Field(alias="schema")
    preview: _MovePreview | None
    """null where the move had begun."""
    journal: _Journal | None
    """null where no move has begun."""


# ---- a running cluster -------------------------------------------------------------------------


class _Node(Document):
    """A node, as SageMaker and Slurm know it."""

    slurm_name: str
    group: str
    index: int
    """Within its group, from 1."""
    role: str
    instance_id: str
    instance_type: str
    private_ip: str
    status: str
    """SageMaker's."""
    message: str
    launched_at: str | None
    image_version: str
    image_status: str


class _NodeWithZone(_Node):
    zone: str


class _NodeInSlurm(_Node):
    slurm_state: str | None = None
    """Missing without `--slurm`."""
    slurm_reason: str | None = None


class _RefusedNode(_Node):
    code: str
    reason: str


class _NodesListed(Document):
    kind: Literal["podwright.nodes/1", "podwright.nodes.drain/1", "podwright.nodes.undrain/1"] = Field(alias="schema")
    cluster: str
    nodes: list[_NodeInSlurm]


class _NodesChanged(Document):
    kind: Literal["podwright.nodes.replace/1", "podwright.nodes.reboot/1", "podwright.nodes.delete/1"] = Field(
        alias="schema"
    )
    cluster: str
    accepted: list[_Node]
    refused: list[_RefusedNode]


class _AddedNodes(Document):
    """AWS's answer for new nodes."""

    group: str
    nodes: list[str]
    """Their logical ids."""
    refused: int
    code: str
    """AWS's; empty where it accepted."""
    message: str


class _NodesAdded(Document):
    kind: Literal["podwright.nodes.add/1"] = Field(alias="schema")
    cluster: str
    count: int
    """Of the group, with the new ones."""
    results: list[_AddedNodes]


class Nodes(RootModel[_NodesListed | _NodesChanged | _NodesAdded]):
    """The documents of `podwright nodes VERB --json`."""


class _Group(Document):
    """An instance group."""

    name: str
    role: str
    partition: str | None
    instance_type: str
    current_count: int
    target_count: int
    status: str
    node_statuses: dict[str, int]
    operations: dict[str, int]
    """Operations in progress, with the number of their nodes."""
    usd_per_hour: float | None
    training_plan_arn: str | None
    image_version: str
    image_status: str
    software_update_status: str


class _FileSystem(Document):
    id: str
    kind: Literal["LUSTRE", "OPENZFS"]
    status: str
    capacity_gib: int
    used_percent: float | None
    """null until CloudWatch has a value."""
    usd_per_hour: float | None


class _Other(Document):
    """A part beside nodes and file systems: a NAT gateway, an endpoint, the accounting database."""

    kind: str
    id: str
    detail: str
    usd_per_hour: float | None


class _Event(Document):
    time: str
    level: str
    resource: str
    description: str


class _Job(Document):
    """A job of Slurm."""

    job_id: str
    name: str
    user: str
    partition: str
    state: str
    elapsed: str
    time_limit: str
    node_count: int
    run: str
    """Of podwright-train, empty for other jobs."""
    nodes_or_reason: str = Field(alias="where")
    """Its nodes, or why it waits."""


class _Cause(Document):
    """A likely cause of a failure."""

    message: str
    """AWS's."""
    cause: str
    command: str
    """Shows the evidence."""


class Status(Document):
    """The document of `podwright status --json`."""

    kind: Literal["podwright.status/1"] = Field(alias="schema")
    cluster: str
    arn: str
    region: str
    status: str
    """SageMaker's."""
    healthy: bool
    failure_message: str | None
    created_at: str | None
    usd_per_hour: float
    """Without what `unpriced` lists."""
    unpriced: list[str]
    groups: list[_Group]
    nodes: list[_NodeWithZone]
    file_systems: list[_FileSystem]
    other_resources: list[_Other] = Field(alias="others")
    events: list[_Event]
    jobs: list[_Job] | None
    """null without `--jobs`."""
    drift: list[str]
    """What the settings file has otherwise."""
    causes: list[_Cause]
    missing: list[str]
    """What was not read, and why."""


class _UpdatedGroup(Document):
    name: str
    nodes: int
    image_id: str
    image_version: str
    desired_image_version: str
    image_status: str
    software_update_status: str


class UpdateSoftware(Document):
    """The document of `podwright update-software --json`."""

    kind: Literal["podwright.update-software/1"] = Field(alias="schema")
    cluster: str
    started: bool
    """False with `--check`."""
    groups: list[_UpdatedGroup]


class _Host(Document):
    """A block of ssh's configuration."""

    aliases: list[str]
    options: dict[str, str]


class SshConfig(Document):
    """The document of `podwright ssh-config --json`."""

    kind: Literal["podwright.ssh-config/1"] = Field(alias="schema")
    cluster: str
    hosts: list[_Host]


class Submit(Document):
    """The document of `podwright submit --json`."""

    kind: Literal["podwright.submit/1"] = Field(alias="schema")
    cluster: str
    run: str
    folder: str
    """On the cluster."""
    job_id: str
    """The last of the jobs."""
    jobs: dict[str, str]
    """Numbers by step: `train` for podwright-train, `batch` for a batch script."""


class Jobs(Document):
    """The document of `podwright jobs --json`."""

    kind: Literal["podwright.jobs/1"] = Field(alias="schema")
    cluster: str
    jobs: list[_Job]


class Cancel(Document):
    """The document of `podwright cancel --json`."""

    kind: Literal["podwright.cancel/1"] = Field(alias="schema")
    cluster: str
    canceled: list[_Job]


class _Line(Document):
    time: str | None
    """null for lines of a file."""
    message: str


class _LogLines(Document):
    kind: Literal["podwright.logs/1"] = Field(alias="schema")
    cluster: str
    source: str
    """A file on the cluster, or a log stream."""
    lines: list[_Line]


class _LogStream(Document):
    name: str
    written_at: str | None


class _LogStreams(Document):
    kind: Literal["podwright.log-streams/1"] = Field(alias="schema")
    cluster: str
    streams: list[_LogStream]


class Logs(RootModel[_LogLines | _LogStreams]):
    """The documents of `podwright logs --json`: lines, or the streams to choose from."""


class _File(Document):
    path: str
    size_bytes: int
    modified_s: float
    """Since 1970."""


class Fetch(Document):
    """The document of `podwright fetch --json`."""

    kind: Literal["podwright.fetch/1"] = Field(alias="schema")
    cluster: str
    run: str
    folder: str
    """Here."""
    usd_per_hour: float | None
    """The price in the report that `--export` wrote; null without one."""
    fetched: list[_File]
    unchanged: int
    """Files that were here already."""


class Drift(Document):
    """The document of `podwright drift --json`."""

    kind: Literal["podwright.drift/1"] = Field(alias="schema")
    cluster: str
    findings: list[Finding]


class Validate(Document):
    """The document of `podwright validate --json`."""

    kind: Literal["podwright.validate/1"] = Field(alias="schema")
    cluster: str
    folder: str
    instance_type: str
    pair_bus_gb_s: float | None
    """1e9 bytes/s of all-reduces between two nodes, the median; null without one."""
    node_bus_gb_s: float | None
    """The same within nodes."""
    transports: list[str]
    findings: list[Finding]
    measurements: Measurements


# ---- the rehearsal -----------------------------------------------------------------------------


class _Began(Document):
    event: Literal["began"]
    step: str
    sentence: str


class _Note(Document):
    event: Literal["note"]
    line: str


class _Ended(Document):
    event: Literal["ended"]
    name: str
    sentence: str
    state: Literal["done", "stopped", "failed"]
    seconds: float
    detail: str


class _Summary(Document):
    """Figures of the whole rehearsal, by their name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)
    event: Literal["summary"]


class Rehearse(RootModel[_Began | _Note | _Ended | _Summary]):
    """A line of `podwright rehearse --json`."""
