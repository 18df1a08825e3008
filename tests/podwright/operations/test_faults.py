"""Every command for a running cluster says in one line why AWS did not do what it asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from podwright.aws_session import Session
from podwright.check.account import Account
from podwright.checkout import ROOT
from podwright.cli import main
from podwright.errors import AwsError

COMMANDS = {
    "status": [],
    "scale": ["workers", "4", "--yes"],
    "update-software": ["--check"],
    "nodes list": [],
    "nodes add": ["workers", "1", "--yes"],
    "nodes replace": ["workers/1", "--yes"],
    "nodes drain": ["workers/1"],
    "connect": [],
    "ssh-config": [],
    "forward": ["8000"],
    "submit": ["job.sbatch"],
    "jobs": [],
    "cancel": ["12", "--yes"],
    "logs": ["12"],
    "logs --lifecycle": ["workers/1"],
    "fetch": ["run"],
    "validate": [],
    "doctor": [],
    "teardown --check": [],
    "import": [],
}
OF_FILE = {  # commands for the cluster of a settings file
    "deploy": ["--yes"],
    "destroy": ["--yes"],
    "drift": [],
    "policy": ["deployer", "--simulate", "arn:aws:iam::123456789012:role/ci"],
    "export": ["create-cluster.json"],
    "move": ["--zone", "usw2-az2", "--dry-run"],
}
USER = "arn:aws:sts::123456789012:assumed-role/dev/ada"
REFUSALS = {  # of AWS: code, message, HTTP status, and what the line says
    "throttled": ("ThrottlingException", "Rate exceeded", 400, "throttled"),
    "denied": ("AccessDeniedException", f"User: {USER} is not authorized to perform: {{call}}", 400, "in the policy"),
    "expired": ("ExpiredTokenException", "The security token included in the request is expired", 400, "has expired"),
    "disabled": ("InvalidClientTokenId", "The security token is invalid", 403, "a region that the account has not"),
    "broken": ("", "<html>a proxy's page", 200, "the answer did not come from AWS"),
}


class Refusing(BaseHTTPRequestHandler):
    """An AWS that refuses every call, in the format of the service that is called."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode(errors="replace")
        code, message, status, _ = self.server.refusal  # type: ignore[attr-defined]
        form = self._json if "json" in (self.headers.get("Content-Type") or "") else self._xml
        text = form(code, message.format(call="service:Call"), body) if code else message
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Keep the terminal quiet."""

    def _json(self, code: str, message: str, _: str) -> str:
        return json.dumps({"__type": code, "message": message})

    def _xml(self, code: str, message: str, body: str) -> str:
        error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        ec2 = "Version=2016-11-15" in body
        return f"<Response><Errors>{error}</Errors></Response>" if ec2 else f"<ErrorResponse>{error}</ErrorResponse>"


@contextmanager
def refusing() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    """A running AWS that refuses everything."""
    with refusing() as running:
        yield running


@pytest.fixture
def command(folder, monkeypatch, request):
    """Return the words of a command in a folder with a plugin and a job."""
    (folder / "job.sbatch").write_text("#!/bin/bash\n")
    (folder / "cdktf.json").write_text("{}")
    (folder / "cluster.yaml").write_text((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    plugin = folder / "bin" / "session-manager-plugin"
    plugin.parent.mkdir()
    plugin.write_text("#!/bin/sh\nexit 0\n")
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", str(plugin.parent), prepend=":")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    if request.param in OF_FILE:
        return [request.param, *OF_FILE[request.param]]
    cluster = ["absent", "--output", "new.yaml"] if request.param == "import" else ["--cluster", "absent"]
    return [*request.param.split(), *COMMANDS[request.param], *cluster]


def refused(capsys, words, *more) -> tuple[int, str]:
    """Run a command that fails; return its status and its one line."""
    status = main([*words, *more])
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == 1, (words, out, err)
    assert out == "", words
    assert len(lines[0]) < 600
    return status, lines[0]


every_command = pytest.mark.parametrize("command", [*COMMANDS, *OF_FILE], indirect=True, ids=str)


@every_command
def test_refusals(command, server, monkeypatch, capsys):
    """Throttling, a missing permission, an expired session, a region that is off, and no answer of AWS: status 3."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name, refusal in REFUSALS.items():
        if (command[0], name) == ("teardown", "denied"):
            continue  # it goes on: other listings may be allowed
        server.refusal = refusal
        status, line = refused(capsys, command)
        assert (status, refusal[3] in line) == (3, True), line


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("attempts", [2, 3])
def test_checks_of_the_account_repeat_throttled_calls(attempts, server, monkeypatch):
    """``check --live``, ``adopt`` and ``align`` obey AWS_MAX_ATTEMPTS, and say how often they asked."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(attempts))
    server.refusal = REFUSALS["throttled"]
    with pytest.raises(
        AwsError, match=rf"throttled servicequotas:ListAWSDefaultServiceQuotas .* in all {attempts} attempts"
    ):
        Account(Session(region="us-west-2")).quotas()


@every_command
def test_no_way_to_aws(command, monkeypatch, capsys, folder):
    """Without a network, or without credentials, it is status 3 and what to set."""
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        status, line = refused(capsys, command)
    assert (status, "does not answer" in line) == (3, True), line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    status, line = refused(capsys, command)
    assert (status, "no AWS credentials" in line) == (3, True), line


@pytest.mark.parametrize("command", COMMANDS, indirect=True, ids=str)
def test_another_cluster_or_region(command, capsys):
    """Credentials of another region are status 3; a cluster that does not exist is 2, where a command needs one."""
    status, line = refused(capsys, command, "--region", "eu-west-1")
    assert (status, "eu-west-1" in line) == (3, True), line
    if command[0] not in {"doctor", "teardown"}:  # of a cluster that is gone they have much to say
        status, line = refused(capsys, command)
        assert (status, "no cluster 'absent' in us-west-2" in line) == (2, True), line
