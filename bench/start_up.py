"""Time how long every command takes to start: medians of interleaved rounds, beside a Python that does nothing.

    python bench/start_up.py cluster.yaml [--rounds 7]

Smallest: python bench/start_up.py cluster.yaml --rounds 1

``podwright check`` reads the given file. A round runs every command once, so that other work on the machine slows all
of them. CPU time is user and system time together; it depends less on other work than wall time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from podwright import cli
from podwright_training import __main__ as trainer

BARE = "python -c pass"


def commands(settings: Path) -> dict[str, list[str]]:
    """Return the measured commands by name."""
    return {
        BARE: ["-c", "pass"],
        "import podwright_training.config.train_config": ["-c", "import podwright_training.config.train_config"],
        "podwright-train --help": ["-m", "podwright_training", "--help"],
        **{f"podwright-train {it} --help": ["-m", "podwright_training", it, "--help"] for it in trainer.COMMANDS},
        "podwright --help": ["-m", "podwright", "--help"],
        "podwright check": ["-m", "podwright", "check", str(settings)],
        **{f"podwright {it.name} --help": ["-m", "podwright", it.name, "--help"] for it in cli.all_commands()},
    }


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Return wall time and CPU time of one start; raises ``CalledProcessError`` if it fails."""
    begin, cpu_before = perf_counter(), _cpu_of_children()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begin, _cpu_of_children() - cpu_before


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, metavar="cluster.yaml")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    measured = commands(given.settings)
    for arguments in measured.values():
        seconds(arguments)  # bytecode is compiled, files are in the cache
    rounds = [{name: seconds(arguments) for name, arguments in measured.items()} for _ in range(given.rounds)]
    print(f"| {f'medians of {given.rounds}':48s} | wall s | CPU s |\n|---|---|---|")
    for name in measured:
        wall_s, cpu_s = (median(times) for times in zip(*(taken[name] for taken in rounds), strict=True))
        print(f"| {f'`{name}`':48s} | {wall_s:6.2f} | {cpu_s:5.2f} |")


if __name__ == "__main__":
    main()
