"""``podwright ssh-proxy``: connect standard input and output with a node's sshd; ssh's ProxyCommand runs it."""

from __future__ import annotations

import argparse

from podwright.aws_session import Session
from podwright.operations.access import session_plugin
from podwright.operations.account import session_documents
from podwright.operations.target import add_examples, add_profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add TARGET, PORT, --region and --profile."""
    parser.add_argument("target", metavar="TARGET", help="node as sagemaker-cluster:CLUSTERID_GROUP-INSTANCEID")
    parser.add_argument("port", type=int, metavar="PORT", help="port of sshd on the node, 22")
    parser.add_argument("--region", help="region of the cluster. Default: AWS_REGION")
    add_profile(parser)
    add_examples(parser, "podwright ssh-config  # writes the ProxyCommand that runs this")


def run(options: argparse.Namespace) -> int:
    """Become the session."""
    session = Session(region=options.region, profile=options.profile)
    session_plugin.replace_process(session, options.target, session_documents.SSH, portNumber=str(options.port))
