"""Parts of cluster.yaml that need a server or a program from outside the cluster."""

from __future__ import annotations

from typing import Any

NODES: dict[str, Any] = {
    "ldap": {"uri": "ldaps://ldap.corp.test", "search_base": "dc=corp,dc=test", "probe_user": "ada"},
    "s3_mounts": [{"bucket": "corpora", "path": "/mnt/corpora"}],
    "containers": {"shared_cache": True},
    "observability": {},
}
