"""``podwright collect``: describe a real cluster's image and behaviour in a file without private data, to share."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from podwright.errors import OperationError
from podwright.operations.access import session_plugin
from podwright.operations.access.remote import RUNNING, quoted
from podwright.operations.account.hyperpod import Cluster, Node
from podwright.operations.nodes.slurm_states import NodeShell
from podwright.operations.target import Target, add_examples, add_target_arguments, target
from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.operations.collection.cluster_profile import ClusterProfile
    from podwright.operations.collection.redaction import Redaction

REHEARSAL = "the rehearsal"
VERSION_SECTIONS = {"packages"}
SLURMCTLD_ANSWER = "scontrol show config"  # It is the same on all nodes, so one node's is enough.
WIDTH = 100
PACKAGE = "podwright.operations.collection"
START = "import base64,zlib;exec(compile(zlib.decompress(base64.b64decode('{packed}')),'collect','exec'))"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file to write, --compare and the cluster."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write. Default: CLUSTER-profile.json, in this folder"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare a profile with the rehearsal, instead of collecting one"
    )
    add_target_arguments(parser, has_json=False)
    add_examples(parser, "podwright collect", "podwright collect --compare demo-profile.json")


def run(options: argparse.Namespace) -> int:
    """Write the profile of a cluster and print its differences from the rehearsal; neither AWS nor nodes are changed.

    Returns:
        1 if ``--compare`` finds a difference, else 0.

    Raises:
        PodwrightError: there is no such cluster, AWS does not answer, no node can be reached, or a file is unusable.
    """
    from podwright.operations.collection.cluster_profile import ClusterProfile

    if options.compare:
        return FAILED if print_differences(ClusterProfile.read(options.compare)) else OK
    cluster_target = target(options)
    profile = collect(cluster_target)
    path = options.output or Path(f"{cluster_target.name.rpartition('/')[2]}-profile.json")
    profile.write(path)
    for source, sections in {**profile.nodes, "API": profile.api}.items():
        counts = ", ".join(f"{name} {len(section)}" for name, section in sections.items())
        print(fill(f"{source}: {counts}", WIDTH, subsequent_indent="  "))
    print_differences(profile)
    print(f"wrote {path}: keys, versions and numbers, with pseudonyms for names and ids; read it before you share it")
    return OK


def print_differences(profile: ClusterProfile) -> int:
    """Print the differences of a profile from the rehearsal's, one a line; return their number."""
    from podwright.operations.collection.cluster_profile import ClusterProfile
    from podwright.operations.collection.comparison import differences

    lines = [difference.line(REHEARSAL) for difference in differences(profile, ClusterProfile.rehearsed())]
    print("".join(f"{line}\n" for line in lines), end="")
    print(f"{len(lines)} differences from {REHEARSAL}" if lines else f"no difference from {REHEARSAL}")
    return len(lines)


def collect(cluster_target: Target) -> ClusterProfile:
    """Return the profile of a cluster: of one running node of each role, and of SageMaker's answers.

    Raises:
        OperationError: the plugin is missing, there is no such cluster, AWS does not answer, or no node does.
    """
    from podwright.operations.collection import api_shapes
    from podwright.operations.collection.cluster_profile import ClusterProfile
    from podwright.operations.collection.redaction import Redaction

    session_plugin.require()
    cluster = cluster_target.cluster()
    nodes = cluster_target.nodes(cluster)
    redaction = Redaction(_private_names(cluster_target, cluster))
    profiles: dict[str, Any] = {}
    reasons = []
    for role, node in _nodes_by_role(nodes):
        try:
            facts = node_facts(NodeShell(cluster_target.session, cluster, node))
        except OperationError as error:
            reasons.append(f"{role}: {error}")
            print(f"podwright: {role} is left out: {error}", file=sys.stderr)
            continue
        if CONTROLLER in profiles:
            facts.pop(SLURMCTLD_ANSWER, None)
        profiles[role] = {name: _redacted(redaction, name, section) for name, section in facts.items()}
    if not profiles:
        no_role = "no node with a role is Running: allow s3:GetObject on the scripts' provisioning_parameters.json"
        raise OperationError(f"no node of {cluster.name} could be examined: {'; '.join(reasons) or no_role}")
    return ClusterProfile(profiles, redaction.document(api_shapes.answers(cluster_target.session, cluster, nodes)))


def node_facts(shell: NodeShell) -> dict[str, dict[str, str]]:
    """Run the program that describes a node, and return what it printed.

    Raises:
        OperationError: no session, or the program failed.
    """
    from importlib.resources import files

    source = files(PACKAGE).joinpath("node_program.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    output = shell.run(quoted("python3", "-I", "-c", START.format(packed=packed)))
    try:
        return dict(json.loads(output.strip().splitlines()[-1]))
    except (ValueError, IndexError) as error:
        raise OperationError(f"{shell.node.name} printed no description: {' '.join(output.split())[-200:]}") from error


def _nodes_by_role(nodes: tuple[Node, ...]) -> Iterator[tuple[str, Node]]:
    """Yield the first running node of each role."""
    for role in (CONTROLLER, COMPUTE, LOGIN):
        running = [node for node in nodes if node.role == role and node.status == RUNNING]
        yield from ((role, node) for node in running[:1])


def _redacted(redaction: Redaction, name: str, section: dict[str, str]) -> dict[str, str]:
    """Return a section of a node without private texts."""
    replace = redaction.version if name in VERSION_SECTIONS else redaction.text
    return {redaction.version(key): replace(value) for key, value in section.items()}


def _private_names(cluster_target: Target, cluster: Cluster) -> dict[str, str]:
    """Return the names that the account gave, with their kinds."""
    buckets = [group.scripts_s3_uri.removeprefix("s3://").partition("/")[0] for group in cluster.groups]
    roles = [group.execution_role_arn.rpartition("/")[2] for group in cluster.groups]
    partitions = [name for group in cluster.groups for name in group.partition.split(",")]
    return {
        **dict.fromkeys(partitions, "partition"),
        **dict.fromkeys(roles, "role"),
        **dict.fromkeys((group.name for group in cluster.groups), "group"),
        **dict.fromkeys(buckets, "bucket"),
        **dict.fromkeys((cluster_target.name, cluster.name, cluster.id), "cluster"),
    }
