"""``podwright-train report``: write the report of a run, or of several side by side, as one HTML page."""

from __future__ import annotations

import argparse
import http.server
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_common.command_line import add_json
from podwright_common.regular_file import read_text
from podwright_training.command_result import print_result
from podwright_training.errors import UserError
from podwright_training.report.goodput import GoodputDocument
from podwright_training.run_folder import RunFolder, place_of, require_own, write_atomically

if TYPE_CHECKING:  # numpy and yaml, which --help does without
    from podwright_training.report.history import History
    from podwright_training.report.page import ReportFigures

PAGE = "index.html"
TIME = "time.md"
PORT = 8000
LARGEST_PORT = 65_535
LIMIT_BYTES = 16 << 20  # Samples, and the result of evaluate, may be this large.


@dataclass(frozen=True)
class WrittenReport:
    """The document of `podwright-train report --json`.

    Attributes:
        page: The HTML page.
        folder: Folder of page and figures.
        figures: Names of the figures.
        goodput: By the run's name.
    """

    page: Path
    folder: Path
    figures: list[str]
    goodput: dict[str, GoodputDocument]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train report``."""
    parser.add_argument(
        "--run-dir", type=Path, required=True, nargs="+", help="folder of the run, finished or not; several: compare"
    )
    parser.add_argument("--output", type=Path, help="folder to write to. Default: <run_dir>/report of the first run")
    parser.add_argument("--usd-per-hour", type=float, help="price of all nodes; adds the cost. Default: no cost")
    parser.add_argument("--live", action="store_true", help="serve the page on localhost and follow the run")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of --live. Default: {PORT}")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write page and figures, or serve the page; return the exit status."""
    from podwright_training.report.page import ReportFigures
    from podwright_training.report.time_table import as_markdown

    if args.usd_per_hour is not None and not 0 <= args.usd_per_hour < math.inf:  # NaN is neither
        raise UserError(f"--usd-per-hour: got {args.usd_per_hour:g}, need 0 or more")
    folders = [RunFolder(path) for path in args.run_dir]
    if args.live:
        return serve(folders, port=args.port, usd_per_hour=args.usd_per_hour)
    if not args.output:
        require_own(folders[0].root)
    histories = _histories(folders)
    output, drawing = args.output or folders[0].report, ReportFigures.of(histories)
    page = _page(folders, histories, usd_per_hour=args.usd_per_hour)
    try:
        texts = {PAGE: page, TIME: as_markdown(histories, usd_per_hour=args.usd_per_hour)}
        _write(output, texts, drawing, title=histories[0].name)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror or error}") from error
    names = [figure.name for figure in drawing.figures]
    text = f"{output / PAGE}\n{', '.join(names)}: .svg and .png in {output}; the run's time: {output / TIME}"
    goodput = {history.name: history.goodput.document(args.usd_per_hour) for history in histories}
    print_result(args, text, WrittenReport(output / PAGE, output, names, goodput))
    return 0


def _write(output: Path, texts: Mapping[str, str], drawing: ReportFigures, *, title: str) -> None:
    """Write page and figures, both or neither."""
    from podwright_training.report.figures import draw

    output = place_of(output)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".report-") as name:
        staging = Path(name)
        for figure in drawing.figures:
            draw(figure, drawing.data, staging, moments=drawing.moments, title=title)
        for file, text in texts.items():
            write_atomically(staging / file, text)
        for path in staging.iterdir():
            final = place_of(output / path.name)
            if final.parent != output:  # a link, perhaps to another disk
                path = Path(shutil.copy(path, final.with_name(f".{final.name}.{path.name}")))  # noqa: PLW2901
            path.replace(final)


def serve(folders: Sequence[RunFolder], *, port: int, usd_per_hour: float | None) -> int:
    """Serve the page on this host's loopback until Ctrl-C; every request reads the metrics again.

    Raises:
        UserError: The port is taken, or there is no such port.
    """
    from podwright_training.report.history import ReportError

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                histories = _histories(folders)
                status, text = HTTPStatus.OK, _page(folders, histories, usd_per_hour=usd_per_hour, live=True)
            except ReportError as error:  # the job has not begun: the browser asks again
                status, text = HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{'html' if status is HTTPStatus.OK else 'plain'}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            if status is not HTTPStatus.OK:
                self.send_header("Refresh", "5")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the terminal quiet."""

    if not 0 <= port <= LARGEST_PORT:
        raise UserError(f"port: got {port}, need 0 (any free one) to {LARGEST_PORT}")
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise UserError(f"port {port} of localhost: {error.strerror}; choose another with --port") from error
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ follows {folders[0].root}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0


def _histories(folders: Sequence[RunFolder]) -> list[History]:
    from podwright_training.report.history import History, distinct_names

    names = distinct_names(folders)
    return [replace(History.of(folder), name=name) for folder, name in zip(folders, names, strict=True)]


def _page(folders: Sequence[RunFolder], histories: Sequence[History], **options: Any) -> str:
    from podwright_training.report.page import render

    first_run = folders[0]
    return render(
        histories, samples=_text(first_run.samples).rstrip(), evaluation=_evaluation(first_run.evaluation), **options
    )


def _evaluation(path: Path) -> dict[str, Any]:
    """Return the result of ``evaluate``, empty without one.

    Raises:
        ReportError: It is damaged; the message has the place.
    """
    from podwright_training.evaluation import CheckpointQuality, SourceQuality
    from podwright_training.json_values import loads
    from podwright_training.report.history import ReportError

    tables = {
        "sources": dict[str, SourceQuality],
        "tasks": dict[str, dict[str, float]],
        "progression": list[CheckpointQuality],
    }
    text = _text(path)
    try:
        figures = loads(text) if text else {}
        reason = _misfit(figures, tables)
    except ValueError as error:
        reason = str(error)
    if reason:
        raise ReportError(f"{path} is damaged ({reason}): evaluate again, or remove it")
    return figures


def _misfit(figures: Any, tables: Mapping[str, Any]) -> str:
    """Return the first value that the page cannot show; empty if there is none."""
    from podwright_training.json_values import misfit

    if not isinstance(figures, dict):
        return f"got a {type(figures).__name__}, need an object"
    return next(
        filter(None, (misfit(figures[name], kind, name) for name, kind in tables.items() if name in figures)), ""
    )


def _text(path: Path) -> str:
    """Return the text of a file, empty without one."""
    from podwright_training.report.history import ReportError

    try:
        return read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}; remove it, or write it again") from error
