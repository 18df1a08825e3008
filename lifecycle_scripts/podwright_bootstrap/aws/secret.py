"""Secrets of AWS Secrets Manager, by the image's own ``aws``, which has the node's role."""

from __future__ import annotations

from podwright_bootstrap.host import process, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError

HINT = "does the secret exist, and may the nodes' role do secretsmanager:GetSecretValue (and kms:Decrypt) on it?"


def read(arn: str) -> str:
    """The secret's text, which neither arguments nor log have; raises ``BootstrapError`` if reading it fails."""
    secret_options = ("--region", arn.split(":")[3], "--secret-id", arn)
    command = (
        "aws",
        "secretsmanager",
        "get-secret-value",
        *secret_options,
        "--query",
        "SecretString",
        "--output",
        "text",
    )
    try:
        answer = waits.retry(
            lambda: process.run(*command, timeout_s=60, quiet=True), attempts=4, pause_s=10, errors=(CommandError,)
        )
    except CommandError as error:
        raise BootstrapError(f"cannot read the secret {arn}: {error}", hint=HINT) from error
    return answer.output.rstrip("\n")
