"""``podwright-train watch``: follow a run in the terminal."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from podwright_common.drawing import drawing_console
from podwright_training.run_folder import RunFolder

if TYPE_CHECKING:
    from podwright_training.report.history import History

REFRESH_S = 5.0
LAST_BYTES = 16 << 20  # The metrics of some 30,000 steps take this many bytes, which are read in half a second.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train watch``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--usd-per-hour", type=float, help="price of all nodes; adds the cost. Default: no cost")
    parser.add_argument(
        "--refresh-s", type=_seconds, default=REFRESH_S, help=f"seconds between updates. Default: {REFRESH_S:g}"
    )


def run(args: argparse.Namespace) -> int:
    """Draw until the run ends or Ctrl-C; in a pipe, print once."""
    from rich.live import Live  # --help does without
    from rich.text import Text

    from podwright_training.report.history import ReportError
    from podwright_training.report.screen import render

    folder, console = RunFolder(args.run_dir), drawing_console(highlight=False)
    if not console.is_terminal:
        console.print(render(_history(folder), width=console.width, usd_per_hour=args.usd_per_hour))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                try:
                    history = _history(folder)
                except ReportError as error:  # the job has not begun
                    live.update(Text(str(error)), refresh=True)
                else:
                    screen = render(history, width=console.width, usd_per_hour=args.usd_per_hour)
                    live.update(screen, refresh=True)
                    if history.end is not None:
                        return 0
                time.sleep(args.refresh_s)
    except KeyboardInterrupt:
        return 0


def _history(folder: RunFolder) -> History:
    from podwright_training.report.history import History

    return History.of(folder, last_bytes=LAST_BYTES)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"got {text}, need a number of seconds above 0")
    return seconds
