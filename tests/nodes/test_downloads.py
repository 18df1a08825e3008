"""Nothing reaches a node without a checksum: what could fetch is in two places, and both compare."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import podwright_bootstrap
from podwright_bootstrap import download
from podwright_bootstrap.requirements import sha256_of
from podwright_bootstrap.shell import BootstrapError

SOURCES = sorted(Path(podwright_bootstrap.__file__).parent.rglob("*.py"))
# By what a node could fetch, and the one module that may: there the sha256 is compared before anything is used.
FETCHERS = {"s3": "download", "pip": "environment"}
NEVER = {"curl", "wget", "git", "apt-get", "apt", "snap", "scp", "rsync", "ftp", "nc", "s3api"}
MODULES = {"urllib", "http", "ftplib", "requests", "ssl", "smtplib", "xmlrpc"}


def words(tree: ast.AST) -> set[str]:
    """Every whole string of a module: programs and their arguments are such."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def imported(tree: ast.AST) -> set[str]:
    """The top-level names of what a module imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("source", SOURCES, ids=[source.stem for source in SOURCES])
def test_only_the_checked_ways_lead_to_a_node(source):
    """No module but the two that compare checksums has a program, argument or library that fetches."""
    tree = ast.parse(source.read_text())
    assert words(tree) & NEVER == set()
    assert imported(tree) & MODULES == set()
    assert {FETCHERS[word] for word in words(tree) & set(FETCHERS)} <= {source.stem}


def test_the_scan_sees_what_it_is_for():
    """A module that fetches would be seen, by program and by library."""
    tree = ast.parse('import urllib.request\nshell.run("curl", "-fsSL", url, timeout_s=60)\n')
    assert words(tree) & NEVER == {"curl"}
    assert imported(tree) & MODULES == {"urllib"}


def test_another_content_is_refused_and_not_kept(tmp_path):
    """An object that is not the deployed one is named with both checksums, and its file is gone."""
    with pytest.raises(BootstrapError, match=r"s3://bucket/key has sha256 \w{64}, the contract says 0{64}"):
        download.fetch("s3://bucket/key", "0" * 64, tmp_path, lambda _, path: path.write_text("other"))
    assert list(tmp_path.iterdir()) == []


def test_the_deployed_content_is_given(tmp_path):
    """An object of the right checksum comes as a file of its name."""
    (tmp_path / "there").write_text("content")
    path = download.fetch(
        "s3://bucket/some/key", sha256_of(tmp_path / "there"), tmp_path, lambda _, path: path.write_text("content")
    )
    assert (path.name, path.read_text()) == ("key", "content")
