"""Fault → outcome: each folder of cases/ is one behaviour of a boot. No boot hangs, each failure is one clear line."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.hosts

CASES = sorted((Path(__file__).resolve().parent / "cases").iterdir())
OPTIONS = ("role", "address", "patience", "instance_type")  # of the host
TEMPORARY = re.compile(r"\.(\w+\.(json|conf|env)|fstab)\.[\w-]+")  # as shell.write_file names them
MOUNTED = "mkdir -p /mnt/fsx && mount -t lustre fs@tcp:/abcdefgh /mnt/fsx && mkdir -p /mnt/fsx/podwright;"
# Where a boot imports it, the boot stops for ever in a function, and says that it is there.
STOP = """
import sys
if "podwright_bootstrap" in sys.orig_argv:
    import pathlib, {module}, time
    {place} = lambda *_, **__: (pathlib.Path("/opt/reached").touch(), time.sleep(300))
"""


@pytest.mark.parametrize("folder", CASES, ids=[folder.name for folder in CASES])
def test_boot_ends_as_the_case_says(folder, make_host, cloud, record_property):
    """A boot fails exactly if the case says so, in one line that matches, and leaves what the case says."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    if "fault" in case:
        outcome = "one line" if "failure" in case["expect"] else "boots"
        record_property("cell", (case["step"], case["fault"], outcome))  # of the matrix: see conftest.py
    merge(cloud.contract, case.get("contract", {}))
    if "lock" in case:
        cloud.replace_lock(case["lock"])
    host = make_host(**{"patience": 0.02, **{key: case[key] for key in OPTIONS if key in case}})
    for name, script in case.get("shims", {}).items():
        host.write(f"opt/shims/{name}", f"#!/bin/bash\n{script}\n", mode=0o755)

    on_create = "./on_create.sh" + (f" --only {case['only']}" if "only" in case else "")
    mounted = f"set -e; {MOUNTED if case.get('mounted') else ''}\n"
    prepare = f"{case.get('prepare', '')}\ncd /opt/scripts\n"
    if "killed_in" in case:
        cut_power(host, case["killed_in"], f"{mounted}{prepare}PYTHONPATH=/opt/killer {on_create}")
        prepare = ""
    commands = mounted + prepare + "\n".join([*[on_create] * case.get("boots", 1), case.get("then", "")])
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


def cut_power(host, place, commands):
    """Switch the host off while its boot is at `place`: in a program, or in a function of Python's library."""
    shim = host.shims / place
    before = shim.read_text() if shim.exists() else None
    if place.startswith(("os.", "shutil.")):
        host.write("opt/killer/sitecustomize.py", STOP.format(module=place.split(".")[0], place=place))
    else:
        host.write(f"opt/shims/{place}", "#!/bin/bash\ntouch /opt/reached; exec sleep 300\n", mode=0o755)
    process = host.start_boot(commands)
    end = time.monotonic() + 180
    while not (host.disk / "opt/reached").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"the boot never came to {place}"
        time.sleep(0.02)
    host.switch_off(process)
    shim.unlink(missing_ok=True)
    if before is not None:
        host.write(f"opt/shims/{place}", before, mode=0o755)


def check_boot(expected, boot):
    """What the boot said."""
    assert re.search(expected.get("said", ""), boot.output), boot.output
    if "summary" in expected:
        assert boot.summaries[-1].startswith(expected["summary"])
    for text in expected.get("silent", []):
        assert text not in boot.output
    if "skipped" in expected:
        assert [step for step, result in boot.results.items() if result["outcome"] == "skipped"] == expected["skipped"]


def check_host(expected, host):
    """What it asked for and who is known; never a part of a file."""
    for start, count in expected.get("calls", {}).items():
        assert sum(call.startswith(start) for call in host.calls) == count, host.calls
    for user, shown in expected.get("accounts", {}).items():
        assert host.run(f"id {user}").output.strip() == shown
    if "record" in expected:
        record = json.loads(host.read("opt/podwright/node.json"))
        assert {key: record[key] for key in expected["record"]} == expected["record"]
    check_files(expected, host)
    assert [path for path in host.disk.rglob(".*.*") if TEMPORARY.fullmatch(path.name)] == []


def check_files(expected, host):
    """What it left on the host; what is absent is named by patterns."""
    for path, text in expected.get("files", {}).items():
        assert host.read(path) == text
    for path, parts in expected.get("contains", {}).items():
        assert [part for part in parts if part not in host.read(path)] == []
    for path, count in expected.get("lines", {}).items():
        assert len(host.read(path).splitlines()) == count
    for path, names in expected.get("names", {}).items():
        assert sorted(item.name for item in (host.disk / path).iterdir()) == names
    for path, content in expected.get("json", {}).items():
        assert json.loads(host.read(path)) == content
    for pattern in expected.get("absent", []):
        assert list(host.disk.glob(pattern)) == []


def check_shared(expected, cloud):
    """What it left on the shared file system."""
    for path, text in expected.get("shared", {}).items():
        assert (cloud.shared / path).read_text() == text
    for path, names in expected.get("shared_names", {}).items():
        assert sorted(item.name for item in (cloud.shared / path).iterdir()) == names
    for path, text in expected.get("homes", {}).items():
        assert (cloud.homes / path).read_text() == text
    if "home_owner" in expected:
        home = cloud.homes / "ubuntu"
        assert {path.stat().st_uid for path in (home, *home.rglob("*"))} == {expected["home_owner"]}
        assert [path.name for path in cloud.homes.iterdir()] == ["ubuntu"]
    for path, (uid, mode) in expected.get("owned", {}).items():
        status = (cloud.shared / path).stat()
        assert (status.st_uid, status.st_gid, f"{status.st_mode & 0o777:o}") == (uid, uid, mode)
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
