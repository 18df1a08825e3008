"""Fault → outcome: each folder of cases/ is one behaviour of a boot. No boot hangs, each failure is one clear line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.hosts

CASES = sorted((Path(__file__).resolve().parent / "cases").iterdir())
TEMPORARY = re.compile(r"\.(\w+\.(json|conf|env)|fstab)\.\w+")  # as shell.write_file names them
MOUNTED = "mkdir /mnt/fsx && mount -t lustre fs@tcp:/abcdefgh /mnt/fsx && mkdir /mnt/fsx/podwright;"


@pytest.mark.parametrize("folder", CASES, ids=[folder.name for folder in CASES])
def test_boot_ends_as_the_case_says(folder, make_host, cloud):
    """A boot fails exactly if the case says so, in one line that matches, and leaves what the case says."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    merge(cloud.contract, case.get("contract", {}))
    if "lock" in case:
        cloud.replace_lock(case["lock"])
    host = make_host(**{"patience": 0.02, **{key: case[key] for key in ("role", "address", "patience") if key in case}})
    for name, script in case.get("shims", {}).items():
        (host.shims / name).write_text(f"#!/bin/bash\n{script}\n")

    on_create = "./on_create.sh" + (f" --only {case['only']}" if "only" in case else "")
    prepare = f"{MOUNTED if case.get('mounted') else ''}\n{case.get('prepare', '')}\ncd /opt/scripts"
    commands = "\n".join(["set -e", prepare, *[on_create] * case.get("boots", 1)])
    boot = host.boot(commands, controller_listens=case.get("controller") != "silent")

    expected = case["expect"]
    if "failure" in expected:
        assert boot.exit_code not in {0, 124, 137}, boot.output
        assert len(boot.failures) == 1, boot.output
        assert re.search(expected["failure"], boot.failures[0]), boot.output
        assert "\nTraceback" not in boot.output  # a fault is told, it does not crash
    else:
        assert (boot.exit_code, boot.failures) == (0, []), boot.output
    check_boot(expected, boot)
    check_host(expected, host)
    check_shared(expected, cloud)


def check_boot(expected, boot):
    """What the boot said."""
    if "summary" in expected:
        assert boot.summaries[-1].startswith(expected["summary"])
    if "skipped" in expected:
        assert [step for step, result in boot.results.items() if result["outcome"] == "skipped"] == expected["skipped"]


def check_host(expected, host):
    """What it asked for and left on the host; never a part of a file."""
    for start, count in expected.get("calls", {}).items():
        assert sum(call.startswith(start) for call in host.calls) == count, host.calls
    for path, text in expected.get("files", {}).items():
        assert host.read(path) == text
    for path, count in expected.get("lines", {}).items():
        assert len(host.read(path).splitlines()) == count
    for path in expected.get("absent", []):
        assert not (host.disk / path).exists()
    if "record" in expected:
        record = json.loads(host.read("opt/podwright/node.json"))
        assert {key: record[key] for key in expected["record"]} == expected["record"]
    assert [path for path in host.disk.rglob(".*.*") if TEMPORARY.fullmatch(path.name)] == []


def check_shared(expected, cloud):
    """What it left on the shared file system."""
    for path, text in expected.get("shared", {}).items():
        assert (cloud.shared / path).read_text() == text
    for path, text in expected.get("homes", {}).items():
        assert (cloud.homes / path).read_text() == text
    if "home_owner" in expected:
        home = cloud.homes / "ubuntu"
        assert {path.stat().st_uid for path in (home, *home.rglob("*"))} == {expected["home_owner"]}
        assert [path.name for path in cloud.homes.iterdir()] == ["ubuntu"]
    for path, pattern in expected.get("matches", {}).items():
        assert re.search(pattern, (cloud.shared / path).read_text())
    if "environment" in expected:
        assert (cloud.environment / ".complete").exists() == (expected["environment"] == "complete")


def merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    """Lay `changes` over `target`; null takes a key away."""
    for key, value in changes.items():
        if value is None:
            del target[key]
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
