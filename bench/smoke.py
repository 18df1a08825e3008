"""Run the smallest case of each benchmark; print one line per benchmark.

    python bench/smoke.py [NAME …]

A benchmark names its smallest case in its docstring, in the line ``Smallest: COMMAND``. Its output goes to
``.cache/bench/NAME.log``.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time

from podwright.checkout import CACHE, ROOT

LOGS = CACHE / "bench"
SMALLEST = re.compile(r"^Smallest: python (?P<command>\S.*)$", re.MULTILINE)


def smallest_cases() -> dict[str, list[str]]:
    """Return the arguments of Python that run each benchmark's smallest case, by the benchmark's name."""
    found = {path.stem: SMALLEST.search(path.read_text(encoding="utf-8")) for path in ROOT.glob("bench/*.py")}
    return {name: shlex.split(match["command"]) for name, match in sorted(found.items()) if match}


def main() -> int:
    """Run them one after another; return 1 if one failed."""
    cases = smallest_cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Default: all.")
    names = parser.parse_args().names or list(cases)
    if unknown := sorted(set(names) - set(cases)):
        parser.error(f"got {', '.join(unknown)}, need {', '.join(cases)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        log, start = LOGS / f"{name}.log", time.monotonic()
        with log.open("w", encoding="utf-8") as output:
            command = [sys.executable, *cases[name]]
            status = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        failed += status != 0
        result = "ok" if status == 0 else f"failed with {status}: {log.relative_to(ROOT)}"
        print(f"{name:18} {time.monotonic() - start:6.0f} s  {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
