"""How long commands take to start: medians of interleaved rounds, beside a Python that does nothing.

    python bench/start_up.py cluster.yaml

``podwright check`` reads the file that is given. A round runs every command once, so that whatever else the machine
does falls on all of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

ROUNDS = 5
BARE = "python -c pass"


def commands(settings: Path) -> dict[str, list[str]]:
    """What is measured, by name."""
    return {
        BARE: ["-c", "pass"],
        "import podwright_training.config.train_config": ["-c", "import podwright_training.config.train_config"],
        "podwright-train --help": ["-m", "podwright_training", "--help"],
        "podwright-train train --help": ["-m", "podwright_training", "train", "--help"],
        "podwright check": ["-m", "podwright", "check", str(settings)],
    }


def seconds(arguments: list[str]) -> float:
    """Of one start; raises ``CalledProcessError`` if it fails."""
    begin = perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begin


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, metavar="cluster.yaml")
    measured = commands(parser.parse_args().settings)
    for arguments in measured.values():
        seconds(arguments)  # bytecode is compiled, files are in the cache
    rounds = [{name: seconds(arguments) for name, arguments in measured.items()} for _ in range(ROUNDS)]
    middle = {name: median(taken[name] for taken in rounds) for name in measured}
    print(f"{'median of ' + str(ROUNDS):36s}  seconds  above {BARE}")
    for name, taken_s in middle.items():
        print(f"{name:36s}  {taken_s:7.3f}  {taken_s - middle[BARE]:7.3f}")


if __name__ == "__main__":
    main()
