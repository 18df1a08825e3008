"""Nothing reaches a node unchecked: whatever could fetch is listed, with what proves the content before it is used."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import podwright_bootstrap

SOURCES = sorted(Path(podwright_bootstrap.__file__).parent.rglob("*.py"))
# Programs, their arguments and libraries that fetch.
PROGRAMS = {
    "curl",
    "wget",
    "git",
    "apt-get",
    "apt",
    "dnf",
    "snap",
    "scp",
    "rsync",
    "s3",
    "s3api",
    "pip",
    "uv",
    "docker",
    "enroot",
}
LIBRARIES = {"urllib.request", "http.client", "ftplib", "requests", "xmlrpc.client"}
# By module: what it may use, and what proves that the content is what was meant. Faults of each are in the matrix.
CHECKED = {
    "dcgm": {"docker": "lists the image's own images and runs one of them, with --pull never"},
    "docker": {"docker": "only asked whether it runs"},
    "downloads": {
        "http.client": "its errors alone",
        "urllib.request": "the manifest's sha256 of every file",
        "enroot": "a name of the manifest",
        "uv": "a name of the manifest",
    },
    "enroot": {"enroot": "only asked for its version"},
    "environment": {
        "pip": "uv pip install --require-hashes: the lock's sha256 of every wheel; source distributions are refused",
    },
    "instance_metadata": {
        "http.client": "its errors alone",
        "urllib.request": "the host's own metadata service, compared with resource_config.json",
    },
    "metrics_service": {
        "http.client": "its errors alone",
        "urllib.request": "exporters on the host itself, asked whether they answer",
    },
    "packages": {"apt-get": "the repository's signature of its packages"},
    "user_folders": {"enroot": "a folder's name"},
    "uv": {"uv": "the manifest's sha256 of its wheel or release"},
    "s3": {"s3": "whoever asks compares: the contract's sha256, the manifest's or the lock's"},
}


def fetchers(text: str) -> set[str]:
    """Return the programs and libraries in a module's text that fetch."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & PROGRAMS
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & LIBRARIES
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} & LIBRARIES
    return found


def test_every_way_onto_a_node_is_checked():
    """The modules that fetch, and what they use, are those of the list."""
    found = defaultdict(set)
    for source in SOURCES:  # a step may have the name of what it uses
        found[source.stem] |= fetchers(source.read_text())
    assert {stem: used for stem, used in found.items() if used} == {stem: set(ways) for stem, ways in CHECKED.items()}


def test_the_scan_sees_what_it_is_for():
    """A program among arguments and a library, however it is imported, are seen."""
    assert fetchers('process.run("curl", "-fsSL", url, timeout_s=60)') == {"curl"}
    assert fetchers('command = ["aws", "s3", "cp", uri, path]') == {"s3"}
    assert fetchers("from urllib.request import urlopen\nfrom http import client") == {"urllib.request", "http.client"}
    assert fetchers("from urllib.parse import quote") == set()
