"""Find secrets in the text of a file, and mask them: all users who deploy can read a settings file.

Patterns are those that the issuers document, so that programs can find leaked ones:
https://docs.github.com/en/code-security/secret-scanning/introduction/supported-secret-scanning-patterns,
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MEANING = "The file holds a password, token or private key. Whoever reads the file can use it."
_KINDS = {
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}|\bapi_org_[A-Za-z0-9]{20,}",
    "a GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    "a GitLab token": r"\bgl(?:pat|rt|dt|ptt|cbt|soat|agent)-[A-Za-z0-9_-]{20,}",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/[A-Za-z0-9/]{10,}",
    "an OpenAI or Anthropic key": r"\bsk-(?:proj|ant|svcacct|admin)-[A-Za-z0-9_-]{20,}|\bsk-[A-Za-z0-9]{32,}",
    "a Google API key": r"\bAIza[A-Za-z0-9_-]{35}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{36}",
    "a PyPI token": r"\bpypi-AgE[A-Za-z0-9_-]{20,}",
    "an NVIDIA API key": r"\bnvapi-[A-Za-z0-9_-]{40,}",
    "a Docker token": r"\bdckr_[po]at_[A-Za-z0-9_-]{20,}",
    "a Vault token": r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}",
    "a Terraform token": r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}",
    "a Databricks token": r"\bdapi[0-9a-f]{32}\b",
    "a Tailscale key": r"\btskey-[a-z]+-[A-Za-z0-9-]{20,}",
    "a Stripe key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{20,}",
    "a SendGrid key": r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "an Azure storage key": r"\bAccountKey=[A-Za-z0-9+/]{86}==",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}",
    "an AWS session token": r"\b(?:IQoJb3JpZ2luX2Vj|FwoGZXIvYXdzE)[A-Za-z0-9+/=]{80,}",
    "an Amazon Bedrock key": r"\bABSK[A-Za-z0-9+/]{60,}={0,2}",
    "an AWS access key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    # 40 characters of Base64 alone: upper case, lower case and a digit, not a path.
    "an AWS secret access key": r"(?<![A-Za-z0-9+/=.:_-])(?!/)"
    r"(?=[A-Za-z0-9+/]{0,39}[A-Z])(?=[A-Za-z0-9+/]{0,39}[a-z])(?=[A-Za-z0-9+/]{0,39}[0-9])"
    r"[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=._-]|:\S)"
    r"|(?i:secret_?access_?key)[\"'\s:=]{1,4}[A-Za-z0-9+/]{40}",
    "a password in a URL": r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@",
    "a private key": r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.)*?"
    r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    # Without its first line: the Base64 of `openssh-key-v1`, and of RSA in PKCS #8; age's and PuTTY's own forms.
    r"|\bb3BlbnNzaC1rZXktdj[A-Za-z0-9+/=]{20,}|\bMII[A-Za-z0-9+/]{1,3}IBADANBgkqhkiG9w0BAQEFAASC[A-Za-z0-9+/=]{20,}"
    r"|\bAGE-SECRET-KEY-1[A-Z0-9]{50,}|\bPuTTY-User-Key-File-[0-9](?s:.)*",
}
_SECRET = re.compile("|".join(f"(?P<kind{number}>{pattern})" for number, pattern in enumerate(_KINDS.values())))
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----(?s:.)*?-----END CERTIFICATE-----")
_SHOWN = 3  # characters of a secret, by which its owner recognises it


class Secret(NamedTuple):
    """One secret: its kind in words, and its place in the text."""

    kind: str
    start: int
    end: int


def find(text: str) -> Iterator[Secret]:
    """Yield the secrets of a text, in order."""
    public = _CERTIFICATE.sub(lambda match: re.sub(r"\S", "-", match[0]), text)
    kinds = tuple(_KINDS)
    for match in _SECRET.finditer(public):
        yield Secret(kinds[int((match.lastgroup or "")[len("kind") :])], *match.span())


def masked(text: str) -> str:
    """Return the text with stars for all but the first characters of each secret; lines and columns stay."""
    for secret in find(text):
        text = text[: secret.start] + stars(text[secret.start : secret.end]) + text[secret.end :]
    return text


def stars(secret: str) -> str:
    """Return stars for all but the first characters of a secret."""
    return secret[:_SHOWN] + re.sub(r"\S", "*", secret[_SHOWN:])
