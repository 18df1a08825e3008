"""Time ``podwright check``: alone, for every wrong file of the tests in one process, and by users and groups.

    python bench/check.py [--rounds 10]

Smallest: python bench/check.py --rounds 1

Times are CPU time, user and system together, which depends less on other work than wall time.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from podwright.checkout import ROOT

MINIMAL = ROOT / "examples" / "minimal" / "cluster.yaml"
EXAMPLE = ROOT / "examples" / "production" / "cluster.yaml"


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description="Time podwright check.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    check = [sys.executable, "-m", "podwright", "check", str(EXAMPLE)]
    alone = [_cpu_s(check) for _ in range(rounds)]
    python = [_cpu_s([sys.executable, "-c", "pass"]) for _ in range(rounds)]
    print(f"podwright check, the production example: {statistics.median(alone):.2f} s", end="")
    print(f", of which Python itself {statistics.median(python):.2f} s")
    from podwright.check.checked_settings import check as report

    with TemporaryDirectory() as folder:
        files = _wrong_files(Path(folder))
        start = process_time()
        found = sum(len(report(file).findings) for file in files)
        print(f"{len(files)} wrong files in one process: {process_time() - start:.2f} s, {found} findings")
    for size in (1, 20, 98):
        print(f"{size} compute groups: {_judging_s(_with_groups(size)):.2f} s")
    for size in (10, 500, 1000, 2000):
        print(f"{size} users: {_judging_s(_with_users(size)):.2f} s")


def _with_groups(count: int) -> str:
    """Return a settings file with many compute groups."""
    groups = [
        f"    - {{name: w{number}, role: compute, instance_type: ml.g5.12xlarge, count: 2}}" for number in range(count)
    ]
    return "\n".join([MINIMAL.read_text(encoding="utf-8").rstrip(), *groups, ""])


def _with_users(count: int) -> str:
    """Return a settings file with many users."""
    users = [f"    - {{name: user{number}, uid: {10_001 + number}, groups: [research]}}" for number in range(count)]
    nodes = ["nodes:", "  groups:", "    - {name: research, gid: 3001}", "  users:", *users, ""]
    return "\n".join([MINIMAL.read_text(encoding="utf-8").rstrip(), *nodes])


def _judging_s(text: str) -> float:
    """Return the CPU time in which a file without errors is judged."""
    from podwright.check.checked_settings import check_document
    from podwright.check.document import Document

    start = process_time()
    report = check_document(Document.parse(text, file=MINIMAL))
    if report.findings:
        raise SystemExit(f"the file has findings: {report.findings[0]}")
    return process_time() - start


def _wrong_files(folder: Path) -> list[Path]:
    """Render the tests' golden cases, each in its own folder."""
    sys.path.insert(0, str(ROOT / "tests" / "podwright"))
    from golden import cases

    files = []
    for number, case in enumerate(cases()):
        (folder / str(number)).mkdir()
        files.append(case.write(folder / str(number)))
    return files


def _cpu_s(command: list[str]) -> float:
    """Run a command and return its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
