"""``podwright connect``: open a shell on a node with Session Manager."""

from __future__ import annotations

import argparse

from podwright.operations.access import session_plugin
from podwright.operations.access.remote import pick, user_name
from podwright.operations.account import session_documents
from podwright.operations.target import NODE_HELP, Target, add_examples, add_target_arguments, target
from podwright.settings import names
from podwright_bootstrap.contract import JOB_USER

ROOT = "root"  # The user of sessions with the default document on HyperPod's nodes.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add NODE, --user, --document and the cluster."""
    parser.add_argument("node", nargs="?", metavar="NODE", help=f"{NODE_HELP}. Default: a login node, else controller")
    parser.add_argument(
        "--user", type=user_name, help=f"user to log in as. Default: the section session's, else {JOB_USER}"
    )
    parser.add_argument("--document", metavar="NAME", help="session document. Default: cluster.yaml's, if it has one")
    add_target_arguments(parser, has_json=False)
    add_examples(
        parser, "podwright connect", "podwright connect ip-10-1-0-12", "podwright connect workers/1 --user root"
    )


def run(options: argparse.Namespace) -> int:
    """Open the shell; this process becomes the session."""
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    node = pick(cluster_target, cluster, options.node)
    goal = cluster.session_target(node)
    document = options.document or (None if options.user else _settings_document(cluster_target))
    if document or options.user == ROOT:
        session_plugin.replace_process(cluster_target.session, goal, document or "")
    command = f"sudo su --login {options.user or JOB_USER}"
    session_plugin.replace_process(cluster_target.session, goal, session_documents.INTERACTIVE, command=command)


def _settings_document(cluster_target: Target) -> str | None:
    """Return the document of the section ``session`` of cluster.yaml, if there is one."""
    if cluster_target.file is None:
        return None
    from podwright.check.load import load  # pydantic takes 0.1 s to import

    settings = load(cluster_target.file)
    return names.operations_name(settings.name) if settings.session else None
