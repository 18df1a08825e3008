"""Forms of a diagram by the suffix of its file, and the drawing of a settings file in one of them."""

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
from podwright_common.exit_status import WRONG_INPUT

FORMS: Mapping[str, Callable[[Diagram], str]] = {
    ".svg": svg,
    ".narrow.svg": narrow_svg,
    ".html": html,
    ".md": markdown,
    ".mmd": mermaid,
}


class DrawingError(PodwrightError):
    """The suffix of the output file names no form of a diagram."""

    exit_status = WRONG_INPUT


def draw(settings: Settings, output: Path | None, synthesize: Callable[[Path], None]) -> str:
    """Draw the resources of settings; return the text to print: the diagram, or the path of its file.

    Args:
        settings: the settings of the cluster.
        output: the file to write. None returns the diagram as text.
        synthesize: writes the stacks of the settings into a folder, as Terraform's JSON.

    Raises:
        DrawingError: the output's suffix is not in ``FORMS``.
        OutputError: writing it fails.
    """
    suffix = max((suffix for suffix in FORMS if output and output.name.endswith(suffix)), key=len, default=None)
    if output and suffix is None:
        raise DrawingError(f"{output}: need a name that ends in {' or '.join(FORMS)}")
    with TemporaryDirectory(prefix="podwright-explain-") as folder:
        synthesize(Path(folder))
        drawn_diagram = diagram(settings, read(Path(folder)))
    if output is None or suffix is None:
        return in_lines(drawn_diagram)
    write_output(output, FORMS[suffix](drawn_diagram))
    return str(output)
