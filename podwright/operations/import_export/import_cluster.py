"""``podwright import CLUSTER``: write cluster.yaml and Terraform's state for a cluster that podwright did not make.

AWS is not changed. The plan of the written file is compared with the cluster before anything is kept: a cluster that
the file cannot describe is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from podwright.aws_session import Session
from podwright.check.input_errors import InvalidSettingsError
from podwright.check.load import load
from podwright.config_file import DEFAULT_CONFIG, config_path
from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.account import hyperpod as clusters
from podwright.operations.account.hyperpod import Cluster
from podwright.operations.deployment.adopt import as_made, enter
from podwright.operations.deployment.deployed_stacks import GUARD, DeployedStack, stacks
from podwright.operations.deployment.kit import PROJECT_FILE, Kit
from podwright.operations.health.differences import unequal
from podwright.operations.import_export.imported import ClusterDescription, Description, describe, normalised
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_profile
from podwright.resource_types import CLUSTER
from podwright.settings import names
from podwright_bootstrap.contract import PROVISIONING_PARAMETERS_NAME
from podwright_common.command_line import add_json
from podwright_common.exit_status import OK

SETTLED = {"InService", "Failed"}
DEFAULT_MOUNTS = {"LUSTRE": "/fsx", "OPENZFS": "/home"}
STORAGE = {"LUSTRE": ("FsxLustreConfig", "fsx_dns_name"), "OPENZFS": ("FsxOpenZfsConfig", "fsx_openzfs_dns_name")}
FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class Import(JsonObject):
    """The document of `podwright import --json`."""

    schema: Literal["podwright.import/1"] = "podwright.import/1"
    cluster: str
    region: str
    arn: str
    file: str
    choices: list[str]
    not_managed: list[str]
    """What every update keeps as it is."""
    next: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the cluster, the file to write, and facts that AWS does not have."""
    parser.add_argument("cluster", metavar="CLUSTER", help="name or ARN of a cluster on Slurm")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"the new file. Default: {DEFAULT_CONFIG}")
    parser.add_argument("--region", help="Default: AWS_REGION, else the profile's")
    add_profile(parser)
    parser.add_argument("--lustre", metavar="ID", help="Lustre file system, if neither API nor scripts name it")
    parser.add_argument("--bucket", metavar="NAME", help="bucket, if the cluster has no lifecycle scripts")
    add_json(parser)
    add_examples(parser, "podwright import research", "podwright import research --lustre fs-0123456789abcdef0")


def run(options: argparse.Namespace) -> int:
    """Write the file and the state.

    Raises:
        PodwrightError: the file exists, the cluster is not one that a settings file can describe, or AWS refuses.
    """
    output: Path = options.output or config_path()
    if os.path.lexists(output):
        raise ArgumentError(f"{output} exists", "name another file with --output, or move this one away")
    if not Path(PROJECT_FILE).is_file():
        raise ArgumentError(f"no {PROJECT_FILE} in {Path.cwd()}", "go to the folder of `podwright init`")
    if options.profile:
        os.environ["AWS_PROFILE"] = options.profile  # Terraform's too
    session = Session(region=options.region, profile=options.profile)
    cluster = clusters.find(session, options.cluster)
    refuse(cluster)
    source = _source(session, cluster, lustre=options.lustre, bucket=options.bucket)
    described = describe(source)
    temporary = output.with_name(f".{output.name}.importing")
    try:
        _write(temporary, described.text(_heading(source)))
        _import(temporary, source)
        _publish(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    _report(source, described, output, as_json=options.json)
    return OK


def refuse(cluster: Cluster) -> None:
    """Refuse a cluster that podwright does not understand.

    Raises:
        ArgumentError: every reason is in it.
    """
    if "Eks" in cluster.description.get("Orchestrator", {}):
        raise ArgumentError(f"{cluster.name} is orchestrated by EKS", "podwright imports clusters on Slurm only")
    if reasons := list(_reasons(cluster)):
        raise ArgumentError(f"cannot import {cluster.name}: {'; '.join(reasons)}")


def _reasons(cluster: Cluster) -> Iterator[str]:
    if cluster.status not in SETTLED:
        yield f"it is {cluster.status}: wait until `podwright status --cluster {cluster.name}` says InService"
    if not cluster.subnet_ids:
        yield "it has no VpcConfig, and a settings file describes clusters in a VPC of yours"
    if len(cluster.subnet_ids) > 1:
        yield f"it has {len(cluster.subnet_ids)} subnets, and a settings file names one; groups may have their own"
    if cluster.description.get("RestrictedInstanceGroups"):
        yield "it has restricted instance groups"
    for kind, groups in groupby(sorted(cluster.groups, key=attrgetter("role")), key=attrgetter("role")):
        arns = {group.execution_role_arn for group in groups}
        if len(arns) > 1:
            yield f"its {kind or 'compute'} groups have {len(arns)} execution roles, and a settings file names one"
    scripts = {json.dumps(group.description.get("LifeCycleConfig")) for group in cluster.groups}
    if len(scripts) > 1:
        yield f"its groups have {len(scripts)} lifecycle scripts, and a settings file names one"
    flexible = [group.name for group in cluster.groups if group.description.get("InstanceRequirements")]
    if flexible:
        yield f"{', '.join(flexible)} may have several instance types (InstanceRequirements)"


def _source(session: Session, cluster: Cluster, *, lustre: str | None, bucket: str | None) -> ClusterDescription:
    """Ask AWS for everything that the file says.

    Raises:
        ArgumentError: AWS does not say which group is the controller, or which file system and bucket it has.
        AwsError: AWS refuses or does not answer.
    """
    answer = session.call("cloudcontrol", "get_resource", TypeName="AWS::SageMaker::Cluster", Identifier=cluster.arn)
    model = json.loads(answer["ResourceDescription"]["Properties"])
    tags = {tag["Key"]: tag["Value"] for tag in model.get("Tags") or ()}
    if names.construct_path(tags):
        hint = "take its cluster.yaml and run `podwright adopt --apply`, which finds all its resources"
        raise ArgumentError(f"{cluster.name} was deployed by podwright", hint)
    parameters = clusters.provisioning_parameters(session, cluster.description["InstanceGroups"])
    scripts = next((group.scripts_s3_uri for group in cluster.groups if group.scripts_s3_uri), "")
    if "controller" not in {group.role for group in cluster.groups}:
        place = f"{scripts.rstrip('/')}/{PROVISIONING_PARAMETERS_NAME}"
        hint = "allow s3:GetObject on it, or put a copy beside the scripts if it is elsewhere"
        raise ArgumentError(f"{place} does not name the controller group of {cluster.name}", hint)
    name = bucket or scripts.removeprefix("s3://").partition("/")[0]
    if not name:
        raise ArgumentError(f"{cluster.name} has no lifecycle scripts that name a bucket", "name one with --bucket")
    (subnet,) = session.call("ec2", "describe_subnets", SubnetIds=list(cluster.subnet_ids))["Subnets"]
    return ClusterDescription(
        cluster=cluster,
        model=model,
        parameters=parameters,
        vpc_id=subnet["VpcId"],
        bucket=name,
        lustre=_lustre(session, cluster, model, parameters, lustre),
        openzfs=_file_system(session, model, parameters, "OPENZFS", None),
    )


def _lustre(
    session: Session,
    cluster: Cluster,
    model: Mapping[str, Any],
    parameters: Mapping[str, Any],
    file_system_id: str | None,
) -> dict[str, Any]:
    lustre = _file_system(session, model, parameters, "LUSTRE", file_system_id)
    if lustre is None:
        hint = "name it with --lustre fs-…"
        raise ArgumentError(f"neither the API nor the scripts name the Lustre file system of {cluster.name}", hint)
    return lustre


def _file_system(
    session: Session, model: Mapping[str, Any], parameters: Mapping[str, Any], kind: str, file_system_id: str | None
) -> dict[str, Any] | None:
    """Return a file system's section, with FSx's own names; None if the cluster names none."""
    by_api, by_scripts = STORAGE[kind]
    storage = [config for group in model["InstanceGroups"] for config in group.get("InstanceStorageConfigs") or ()]
    mount: Mapping[str, Any] = next((config[by_api] for config in storage if config.get(by_api)), {})
    match = FILE_SYSTEM_ID.match(file_system_id or mount.get("DnsName") or str(parameters.get(by_scripts) or ""))
    if match is None:
        return None
    (description,) = session.call("fsx", "describe_file_systems", FileSystemIds=[match[0]])["FileSystems"]
    if description["FileSystemType"] != kind:
        raise ArgumentError(
            f"{match[0]} is a file system of type {description['FileSystemType']}", f"name one of {kind}"
        )
    section = {"source": "existing", "dns_name": description["DNSName"]}
    if kind == "LUSTRE":
        configuration = description["LustreConfiguration"]
        section["mount_name"] = configuration["MountName"]
        section |= {"efa": True} if configuration.get("EfaEnabled") else {}
    return {**section, "mount_path": mount.get("MountPath", DEFAULT_MOUNTS[kind])}


def _heading(source: ClusterDescription) -> list[str]:
    today = datetime.now(timezone.utc).date().isoformat()
    manages = (
        "podwright manages the cluster. It uses, and does not change, what is existing here: network, file systems, "
        "bucket with its scripts, and role."
    )
    return [f"{source.cluster.name}, written by `podwright import` on {today} from {source.cluster.arn}.", manages]


def _import(file: Path, source: ClusterDescription) -> None:
    """Check the file, compare its plan with the cluster, and write both stacks' states.

    Raises:
        OperationError: the file would not describe the cluster; every difference is in it.
        TerraformError: Terraform cannot plan, or does not take the state.
    """
    name = source.cluster.name
    try:
        settings = load(file)
    except InvalidSettingsError as error:
        reasons = "; ".join(dict.fromkeys(finding.message for finding in error.findings))
        raise OperationError(f"a settings file cannot describe {name}: {reasons}") from error
    kit = Kit(file, Path.cwd())
    with kit.locked("import"):
        kit.synthesize()
        deployed = stacks(settings.name, folder=kit.folder)
        _enter(deployed["cluster"], source)
        for stack in deployed.values():
            _enter_guards(stack)
            stack.record_outputs()


def _enter(stack: DeployedStack, source: ClusterDescription) -> None:
    changes = stack.plan()["resource_changes"]
    change = next(item for item in changes if item["type"] == CLUSTER)
    planned, state = change["change"]["after"], change["change"]["before"]
    if state is not None:
        if state["id"] == source.cluster.arn:
            return  # an import that was killed has written it
        raise ArgumentError(f"Terraform's state here has another cluster, {state['id']}", "go to an empty project")
    desired = json.loads(planned["desired_state"])
    differences = list(unequal(desired, as_made(desired, normalised(source.model))))
    if differences:
        lines = [
            f"{'.'.join(path)}: AWS has {aws_value}, the file can only say {file_value}"
            for path, file_value, aws_value in differences
        ]
        raise OperationError(f"a settings file cannot describe {source.cluster.name}: {'; '.join(lines)}")
    properties = {"id": source.cluster.arn, "properties": json.dumps(source.model)}
    enter(stack, change, {**properties, "desired_state": planned["desired_state"]})


def _enter_guards(stack: DeployedStack) -> None:
    """Write into the state what the guards would record, because nothing is to be created."""
    changes = stack.plan()["resource_changes"]
    for guard in (item for item in changes if item["type"] == GUARD and item["change"]["actions"] == ["create"]):
        values = {"value": guard["change"]["after"]["input"], "type": "string"}
        enter(stack, guard, {"id": str(uuid.uuid4()), "input": values, "output": values})


def _write(file: Path, text: str) -> None:
    try:
        with file.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise OperationError(f"cannot write {file}: {error.strerror}") from error


def _publish(temporary: Path, output: Path) -> None:
    """Give the file its name, unless another process has created it meanwhile."""
    try:
        os.link(temporary, output)
    except OSError as error:
        raise OperationError(f"cannot write {output}: {error.strerror}", "run the import again") from error


def _report(source: ClusterDescription, described: Description, output: Path, *, as_json: bool) -> None:
    following = ["podwright deploy --dry-run", "podwright status"]
    if as_json:
        document = Import(
            cluster=source.cluster.name,
            region=source.cluster.region,
            arn=source.cluster.arn,
            file=str(output),
            choices=described.choices,
            not_managed=list(described.not_managed),
            next=following,
        )
        print_document(document)
        return
    print(f"{output}: {source.cluster.name} in {source.cluster.region}, and Terraform's state has it")
    for choice in described.choices:
        print(f"  chosen: {choice}")
    if described.not_managed:
        print(f"  not managed, and kept: {', '.join(described.not_managed)}")
    print("next:\n" + "\n".join(f"  {command}" for command in following))
