"""Time ``podwright check``: alone, and for every wrong file of the tests in one process.

    python bench/check.py [--rounds 10]

Smallest: python bench/check.py --rounds 1
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLE = CHECKOUT / "examples" / "production" / "cluster.yaml"


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description="Time podwright check.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    check = [sys.executable, "-m", "podwright", "check", str(EXAMPLE)]
    alone = [_seconds(check) for _ in range(rounds)]
    python = [_seconds([sys.executable, "-c", "pass"]) for _ in range(rounds)]
    print(f"podwright check, the production example: {statistics.median(alone):.2f} s", end="")
    print(f", of which Python itself {statistics.median(python):.2f} s")
    from podwright.check.report import check as report

    with TemporaryDirectory() as folder:
        files = _wrong_files(Path(folder))
        start = time.perf_counter()
        found = sum(len(report(file).findings) for file in files)
        print(f"{len(files)} wrong files in one process: {time.perf_counter() - start:.2f} s, {found} findings")


def _wrong_files(folder: Path) -> list[Path]:
    """Render the tests' golden cases, each in its own folder."""
    sys.path.insert(0, str(CHECKOUT / "tests" / "podwright"))
    from golden import cases

    files = []
    for number, case in enumerate(cases()):
        (folder / str(number)).mkdir()
        files.append(case.write(folder / str(number)))
    return files


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
