"""Boot a host for each case: one behaviour in cases/<step>/<name>.yaml, whose keys case.py documents.

No boot hangs; each failure is one clear line.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from podwright_bootstrap.boot import STEPS
from tests.bootstrap import case as cases

pytestmark = pytest.mark.hosts

PATHS = cases.paths()
TEMPORARY = re.compile(r"\.(\w+\.(json|conf|env)|fstab)\.[\w-]+")  # the names that files.write_file gives them
MOUNTED = "mkdir -p /mnt/fsx && mount -t lustre fs@tcp:/abcdefgh /mnt/fsx && mkdir -p /mnt/fsx/podwright;"
# Where a boot imports it, the boot stops for ever in a function, and says that it is there.
STOP = """
import sys
if "podwright_bootstrap" in sys.orig_argv:
    import pathlib, {module}, time
    {function} = lambda *_, **__: (pathlib.Path("/opt/reached").touch(), time.sleep(300))
"""


@pytest.mark.parametrize("path", PATHS, ids=[f"{path.parent.name}/{path.stem}" for path in PATHS])
def test_boot_ends_as_the_case_says(path, make_host, cloud, record_property):
    """A boot fails exactly if the case says so, in one line that matches, and leaves what the case says."""
    case = cases.load(path)
    expected = case.expect
    if case.fault:
        outcome = "one line" if expected.failure else "warns" if expected.warning else "boots"
        record_property("cell", (case.step, case.fault, outcome))  # see conftest.py
    merge(cloud.contract, case.contract)
    if case.lock is not None:
        cloud.replace_lock(case.lock)
    if case.added_package:
        cloud.add_package(case.added_package)
    host = make_host(**case.host_options)
    for name, script in case.shims.items():
        host.write(f"opt/shims/{name}", f"#!/bin/bash\n{script}\n", mode=0o755)

    boot = host.boot(commands(case, host), controller_listens=case.controller == "listens")

    if expected.failure:
        assert boot.exit_code not in {0, 124, 137}, boot.output
        assert len(boot.failures) == 1, boot.output
        assert re.search(expected.failure, boot.failures[0]), boot.output
        assert "\nTraceback" not in boot.output  # a fault is reported, it does not crash
    else:
        assert (boot.exit_code, boot.failures) == (0, []), boot.output
    assert len(boot.warnings) == (1 if expected.warning else 0), boot.output
    check_boot(expected, boot)
    check_host(expected, host)
    check_shared(expected, cloud)


def test_every_step_meets_a_fault():
    """Each step has a cell in the matrix at least: a case that is about a fault."""
    cells = {case.step for case in map(cases.load, PATHS) if case.fault}
    assert [step.name for step in STEPS if step.name not in cells] == []


def test_a_case_with_an_unknown_key_is_refused(tmp_path, monkeypatch):
    """A misspelt key is an error that names the file and the key."""
    monkeypatch.setattr(cases, "CASES", tmp_path)
    path = tmp_path / "slurm" / "misspelt.yaml"
    path.parent.mkdir()
    path.write_text("behaviour: It boots.\nexpect: {sumary: 1 steps}\nmonted: true\n")
    with pytest.raises(ValueError, match=r"(?s)slurm/misspelt\.yaml.*expect\.sumary.*monted"):
        cases.load(path)


def test_a_case_of_an_unknown_step_is_refused(tmp_path, monkeypatch):
    """A folder is named after a step."""
    monkeypatch.setattr(cases, "CASES", tmp_path)
    path = tmp_path / "slum" / "typo.yaml"
    path.parent.mkdir()
    path.write_text("behaviour: It boots.\nexpect: {}\n")
    with pytest.raises(ValueError, match="no step is called slum"):
        cases.load(path)


def commands(case, host):
    """Return the bash commands of a case; where it cuts the power, that boot is already over."""
    on_create = "./on_create.sh" + (f" --only {case.only}" if case.only else "")
    mounted = f"set -e; {MOUNTED if case.mounted else ''}\n"
    prepare = f"{case.prepare}\ncd /opt/scripts\n"
    if case.killed_in:
        cut_power(host, case.killed_in, f"{mounted}{prepare}PYTHONPATH=/opt/killer {on_create}")
        prepare = ""
    return mounted + prepare + "\n".join([*[on_create] * case.boots, case.then])


def cut_power(host, stop_at, script):
    """Switch the host off while its boot is in `stop_at`: a program, or a function of Python's library."""
    shim = host.shims / stop_at
    before = shim.read_text() if shim.exists() else None
    if stop_at.startswith(("os.", "shutil.")):
        host.write("opt/killer/sitecustomize.py", STOP.format(module=stop_at.split(".")[0], function=stop_at))
    else:
        host.write(f"opt/shims/{stop_at}", "#!/bin/bash\ntouch /opt/reached; exec sleep 300\n", mode=0o755)
    process = host.start_boot(script)
    end = time.monotonic() + 600
    while not (host.disk / "opt/reached").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"the boot never came to {stop_at}"
        time.sleep(0.02)
    host.switch_off(process)
    shim.unlink(missing_ok=True)
    if before is not None:
        host.write(f"opt/shims/{stop_at}", before, mode=0o755)


def check_boot(expected, boot):
    """Compare the boot's output."""
    assert re.search(expected.said, boot.output), boot.output
    assert re.search(expected.warning, "".join(boot.warnings)), boot.output
    if expected.summary:
        assert boot.summaries[-1].startswith(expected.summary)
    for text in expected.silent:
        assert text not in boot.output
    if expected.skipped is not None:
        assert [step for step, result in boot.results.items() if result["outcome"] == "skipped"] == expected.skipped


def check_host(expected, host):
    """Compare recorded commands, accounts and files; no temporary file is left."""
    for start, count in expected.calls.items():
        assert sum(call.startswith(start) for call in host.calls) == count, host.calls
    for user, shown in expected.accounts.items():
        assert host.run(f"id {user}").output.strip() == shown
    if expected.record:
        record = json.loads(host.read("opt/podwright/node.json"))
        assert {key: record[key] for key in expected.record} == expected.record
    check_files(expected, host)
    assert [path for path in host.disk.rglob(".*.*") if TEMPORARY.fullmatch(path.name)] == []


def check_files(expected, host):
    """Compare files on the host's disk."""
    for path, text in expected.files.items():
        assert host.read(path) == text
    for path, parts in expected.contains.items():
        assert [part for part in parts if part not in host.read(path)] == []
    for path, count in expected.lines.items():
        assert len(host.read(path).splitlines()) == count
    for path, names in expected.names.items():
        assert sorted(item.name for item in (host.disk / path).iterdir()) == names
    for path, content in expected.json_files.items():
        assert json.loads(host.read(path)) == content
    for pattern in expected.absent:
        assert list(host.disk.glob(pattern)) == []


def check_shared(expected, cloud):
    """Compare files on the shared file systems."""
    for path, text in expected.shared.items():
        assert (cloud.shared / path).read_text() == text
    for path, names in expected.shared_names.items():
        assert sorted(item.name for item in (cloud.shared / path).iterdir()) == names
    for path, text in expected.homes.items():
        assert (cloud.homes / path).read_text() == text
    if expected.home_owner is not None:
        home = cloud.homes / "ubuntu"
        assert {path.stat().st_uid for path in (home, *home.rglob("*"))} == {expected.home_owner}
        assert [path.name for path in cloud.homes.iterdir()] == ["ubuntu"]
    for path, (uid, mode) in expected.owned.items():
        status = (cloud.shared / path).stat()
        assert (status.st_uid, status.st_gid, f"{status.st_mode & 0o777:o}") == (uid, uid, mode)
    for path, pattern in expected.matches.items():
        assert re.search(pattern, (cloud.shared / path).read_text())
    if expected.environment:
        assert (cloud.environment / ".complete").exists() == (expected.environment == "complete")
    if expected.packages is not None:
        assert json.loads((cloud.environment / ".complete").read_text())["packages"] == expected.packages


def merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    """Lay `changes` over `target`; null takes a key away."""
    for key, value in changes.items():
        if value is None:
            del target[key]
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
