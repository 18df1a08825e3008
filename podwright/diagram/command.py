"""``podwright explain FILE -o architecture.svg``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from podwright.diagram.mermaid import mermaid
from podwright.diagram.parts import Diagram, diagram
from podwright.diagram.resources import read
from podwright.diagram.svg import html, narrow_svg, svg
from podwright.diagram.text import in_lines, markdown
from podwright.errors import PodwrightError
from podwright.output_file import write_output
from podwright.settings.root import Settings

FORMS: Mapping[str, Callable[[Diagram], str]] = {
    ".svg": svg,
    ".narrow.svg": narrow_svg,
    ".html": html,
    ".md": markdown,
    ".mmd": mermaid,
}


class DrawingError(PodwrightError):
    """The drawing's file has a name of no known form."""

    exit_status = 2


Synthesize = Callable[[Settings, Path], None]


def draw(settings: Settings, output: Path | None, synthesize: Synthesize) -> str:
    """Draw the resources of settings; return the text to print: the diagram, or its path.

    Raises:
        InvalidArgumentsError: a construct refuses its arguments.
        WheelError: building the training program fails.
        DrawingError: the output has another end than those of ``FORMS``.
        OutputError: writing it fails.
    """
    end = max((end for end in FORMS if output and output.name.endswith(end)), key=len, default=None)
    if output and end is None:
        raise DrawingError(f"{output}: need a name that ends in {' or '.join(FORMS)}")
    with TemporaryDirectory(prefix="podwright-explain-") as folder:
        synthesize(settings, Path(folder))
        drawn = diagram(settings, read(Path(folder)))
    if output is None or end is None:
        return in_lines(drawn)
    write_output(output, FORMS[end](drawn))
    return str(output)
