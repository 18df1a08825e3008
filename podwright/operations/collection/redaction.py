"""Replace what names an account, a machine or a person by stable pseudonyms, such as ``account-1`` and ``node-2``."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

# The order matters: an ARN contains an account, a URI a bucket, a host name an address.
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "private-key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    "arn": re.compile(r"arn:aws[a-z-]*:[^\s\"',|]*"),
    "bucket": re.compile(r"s3://[^\s\"',|]*"),
    "email": re.compile(r"[\w.+%-]+@[\w-]+(\.[\w-]+)+"),
    "access-key": re.compile(r"(?<![A-Za-z0-9])(AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"),
    "uuid": re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])"),
    "mac": re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])"),
    "node": re.compile(r"ip-\d{1,3}(-\d{1,3}){3}"),
    "host": re.compile(
        r"[A-Za-z0-9*-]+(\.[A-Za-z0-9-]+)*\.(amazonaws\.com(\.cn)?|internal|aws|local|corp|lan)(?![\w-])"
    ),
    "id": re.compile(r"[a-z]{1,16}-[0-9a-f]{8,17}"),
    "secret": re.compile(r"(?<![A-Za-z0-9/+=_.-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_.-])"),
    "account": re.compile(r"(?<!\d)\d{12}(?!\d)"),
}
_IPV4 = re.compile(r"(\d{1,3}\.){3}\d{1,3}")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f:]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
_HOME = re.compile(r"(?<=/home/)[^/\s\"',:|]+")
# Names that many clusters have, and that are also words of Slurm and Linux: they identify nobody.
_COMMON_NAMES = {
    "all",
    "compute",
    "controller",
    "cpu",
    "dev",
    "gpu",
    "login",
    "node",
    "nodes",
    "slurm",
    "worker",
    "workers",
}
_IMAGE_HOMES = {"ubuntu", "slurm"}
_VERSION = re.compile(r"[0-9][\w.+:~-]{0,80}")


class Redaction:
    """Pseudonyms by what they replace; the same text has the same pseudonym in every node's answers.

    Args:
        kinds: the kind of each name that the account gave, such as a cluster's or a group's, by the name.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._kinds = {name: kind for name, kind in kinds.items() if name and name not in _COMMON_NAMES}
        longest_first = sorted(self._kinds, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if words else None

    def text(self, text: str) -> str:
        """Return a text without ids, addresses and names."""
        return self._addresses(self._identifiers(text))

    def version(self, text: str) -> str:
        """Return a version unchanged unless it has an id: `2.15.0.1` is a version here, and no address."""
        return self._identifiers(text) if _VERSION.fullmatch(text) else self.text(text)

    def document(self, value: Any) -> Any:
        """Return a document whose keys and texts are redacted."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.document(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.document(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _identifiers(self, text: str) -> str:
        for kind, pattern in _PATTERNS.items():
            text = self._replaced(pattern, kind, text)
        text = _HOME.sub(lambda match: self._home(match[0]), text)
        if self._names:
            text = self._names.sub(lambda match: self._pseudonym(self._kinds[match[0]], match[0]), text)
        return text

    def _replaced(self, pattern: re.Pattern[str], kind: str, text: str) -> str:
        return pattern.sub(lambda match: self._pseudonym(kind, match[0]), text)

    def _addresses(self, text: str) -> str:
        text = _IPV6.sub(lambda match: self._ipv6(match[0]), text)
        return self._replaced(_IPV4, "address", text)

    def _ipv6(self, text: str) -> str:
        """Return an address's pseudonym; a text that is no address, such as a time, stays."""
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return text
        return self._pseudonym("address", text)

    def _home(self, name: str) -> str:
        return name if name in _IMAGE_HOMES else self._pseudonym("user", name)

    def _pseudonym(self, kind: str, text: str) -> str:
        if (kind, text) not in self._pseudonyms:
            self._counts[kind] += 1
            self._pseudonyms[kind, text] = f"{kind}-{self._counts[kind]}"
        return self._pseudonyms[kind, text]
