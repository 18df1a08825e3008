"""Certificates in PEM, as text. Standard library only."""

from __future__ import annotations

import re
import ssl

_BLOCKS = re.compile(r"\s*(-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\s*)+")


def are_certificates(text: str) -> bool:
    """Return whether a text consists of certificates, each of which OpenSSL can read."""
    if not _BLOCKS.fullmatch(text):
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        return False
    return True
