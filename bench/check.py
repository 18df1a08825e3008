"""Time ``podwright check``: alone, and for every wrong file of the tests in one process.

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
