"""Measure every so often, for node_exporter's textfile collector: ``--interval 30 --output FOLDER NAME…``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Callable, Dict, List

from podwright_bootstrap.collectors import efa, gpu, kernel_log, neuron_monitor, slurm_queue, training
from podwright_bootstrap.collectors.family import Family, text

COLLECTORS: Dict[str, Callable[[], List[Family]]] = {
    "gpu": gpu.collect,
    "kernel_log": kernel_log.collect,
    "neuron": neuron_monitor.collect,
    "efa": efa.collect,
    "slurm": slurm_queue.collect,
    "training": training.collect,
}


def main() -> None:
    """Run the named collectors until this process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"collectors to run: {', '.join(COLLECTORS)}")
    parser.add_argument("--interval", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    while True:
        started = time.monotonic()
        measure(options.names, options.output)
        time.sleep(max(1.0, options.interval - (time.monotonic() - started)))


def measure(names: List[str], output: Path) -> None:
    """Write one file: readers see the old or the new one. A collector that fails does not stop the others."""
    works = Family("podwright_collector_works", "Whether the collector had an answer, 1 or 0")
    families = [works]
    for name in names:
        try:
            families += COLLECTORS[name]()
            works.add(1, collector=name)
        except Exception as error:  # noqa: BLE001 (a broken collector ends no other)
            print(f"{name}: {error!r}", flush=True)
            works.add(0, collector=name)
    moment = Family("podwright_collected_timestamp_seconds", "When the collectors last ran")
    moment.add(time.time())
    temporary = output / ".podwright.prom.new"
    temporary.write_text(text([*families, moment]))
    temporary.replace(output / "podwright.prom")


if __name__ == "__main__":
    main()
