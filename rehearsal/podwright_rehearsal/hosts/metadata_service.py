"""The metadata service of a host, IMDSv2 with a role as on HyperPod. systemd runs it with the host's own Python."""

from __future__ import annotations

import json
import os
import secrets
import socket
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADDRESS = "169.254.169.254"  # a unit gives it to the host's own interface
RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
LISTS_NOTHING = Path("/opt/rehearsal/metadata_lists_nothing")
ROLE = "podwright-rehearsal"
TOKEN = secrets.token_hex(28)


class Metadata(BaseHTTPRequestHandler):
    """Answer only requests with a token."""

    def do_PUT(self) -> None:
        """Give out the token."""
        granted = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer(200 if granted else 400, TOKEN if granted else "")

    def do_GET(self) -> None:
        """Return a text; 401 without a token, as IMDSv2, which HyperPod requires."""
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._answer(401, "")
            return
        text = texts().get(self.path.removeprefix("/latest/meta-data/"))
        self._answer(404 if text is None else 200, text or "")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def texts() -> dict[str, str]:
    """Return the entries below /latest/meta-data/."""
    if LISTS_NOTHING.exists():
        return {"iam/security-credentials/": ""}
    groups = json.loads(RESOURCE_CONFIG.read_text())["InstanceGroups"]
    instances = {instance["CustomerIpAddress"]: instance for group in groups for instance in group["Instances"]}
    return {
        "instance-id": instances[socket.gethostbyname(socket.gethostname())]["InstanceId"],
        "placement/region": os.environ.get("AWS_REGION", ""),
        "iam/security-credentials/": ROLE,
        f"iam/security-credentials/{ROLE}": json.dumps(_credentials()),
    }


def _credentials() -> dict[str, str]:
    """Return the role's credentials as EC2 has them; programs refuse them without a token and an end."""
    now = datetime.now(timezone.utc)
    times = {"LastUpdated": now, "Expiration": now + timedelta(hours=6)}
    return {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": os.environ.get("AWS_ACCESS_KEY_ID", ""),
        "SecretAccessKey": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
        "Token": TOKEN,
        **{name: f"{time:%Y-%m-%dT%H:%M:%SZ}" for name, time in times.items()},
    }


if __name__ == "__main__":
    ThreadingHTTPServer((ADDRESS, 80), Metadata).serve_forever()
