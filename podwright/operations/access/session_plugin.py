"""AWS's session-manager-plugin, which carries a Session Manager session; the AWS CLI is not needed.

https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NoReturn

from podwright.aws_session import Session
from podwright.errors import AwsError, OperationError

PLUGIN = "session-manager-plugin"
INSTALL_PAGE = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)
# The plugin reads the answer of StartSession, with its token, from this variable: arguments are public.
VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
LAST_VERSION_WITHOUT_VARIABLE = (1, 2, 497, 0)  # The AWS CLI has the same limit.


def replace_process(session: Session, target: str, document: str = "", **parameters: str) -> NoReturn:
    """Start a session and become the plugin, which has the terminal and its signals.

    Args:
        session: the account and region.
        target: ``Cluster.session_target`` of a node.
        document: the session document. Default: the account's own, which opens a shell.
        parameters: the document's parameters, by name.

    Raises:
        OperationError: the plugin is missing or too old, or SSM does not start the session.
    """
    command, environment = _started(session, target, document, parameters)
    os.execvpe(command[0], command, environment)  # noqa: S606 — no shell


def run_command(session: Session, target: str, document: str, **parameters: str) -> str:
    """Start a session, wait until it ends and return what it printed, with the plugin's own lines.

    Raises:
        OperationError: as ``replace_process``.
    """
    command, environment = _started(session, target, document, parameters)
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout


def _started(
    session: Session, target: str, document: str, parameters: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Start a session; return the plugin's arguments and environment for it."""
    require()
    request = {
        "Target": target,
        **({"DocumentName": document} if document else {}),
        **({"Parameters": {name: [value] for name, value in parameters.items()}} if parameters else {}),
    }
    try:
        answer = session.call("ssm", "start_session", **request)
    except AwsError as error:
        if error.code != "TargetNotConnected":
            raise
        raise AwsError(
            f"no session on {target}: the instance is not connected to Session Manager",
            "`podwright nodes list` shows whether it still exists and is Running; after a replacement, run "
            "`podwright ssh-config` again",
            code=error.code,
        ) from error
    members = {name: answer[name] for name in ("SessionId", "TokenValue", "StreamUrl")}
    environment = {**os.environ, VARIABLE: json.dumps(members)}
    endpoint = session.client("ssm").meta.endpoint_url
    command = [PLUGIN, VARIABLE, session.region, "StartSession", session.profile or "", json.dumps(request), endpoint]
    return command, environment


def require() -> None:
    """Check that the plugin is installed.

    Raises:
        OperationError: it is missing, or older than the version that reads the token from its environment.
    """
    if shutil.which(PLUGIN) is None:
        raise OperationError(f"{PLUGIN} is not on PATH", f"install it: {INSTALL_PAGE}")
    output = subprocess.run([PLUGIN, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    version = tuple(map(int, output.split("."))) if re.fullmatch(r"\d+(\.\d+){1,3}", output) else ()
    if version <= LAST_VERSION_WITHOUT_VARIABLE:
        needed = ".".join(map(str, LAST_VERSION_WITHOUT_VARIABLE))
        version_text = output or "of an unknown version"
        raise OperationError(f"{PLUGIN} {version_text} is too old", f"install a version after {needed}: {INSTALL_PAGE}")
