"""The certificate authorities of RDS, by region. Standard library only."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_CERTIFICATE = re.compile(
    r"^# (?P<region>[a-z0-9-]+)\n(?P<pem>-----BEGIN CERTIFICATE-----\n[^-]+-----END CERTIFICATE-----\n)", re.MULTILINE
)


@cache
def regions() -> frozenset[str]:
    """Return the regions whose authority is known."""
    return frozenset(_certificates())


def of_region(region: str) -> str:
    """Return the certificate of a region's authority, in PEM.

    Raises:
        KeyError: the region's authority is not known.
    """
    return _certificates()[region]


@cache
def _certificates() -> dict[str, str]:
    text = resources.files("podwright_constructs").joinpath("rds_certificates.pem").read_text(encoding="ascii")
    return {match["region"]: match["pem"] for match in _CERTIFICATE.finditer(text)}
