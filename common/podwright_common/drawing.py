"""Draw on terminals by rich, which the distributions that draw depend on; this one does not."""

from __future__ import annotations

import sys
from io import TextIOBase
from typing import TYPE_CHECKING, Any, Iterable, TextIO

from podwright_common.terminal import Fitted, printable

if TYPE_CHECKING:
    from rich.console import Console


class Canvas(TextIOBase):
    """The file of a rich console that draws on a terminal."""

    def __init__(self, stream: Fitted) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the terminal's encoding."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """Draw."""
        self._stream.draw(text)
        return len(text)

    def flush(self) -> None:
        """Write the incomplete line."""
        if not self._stream.closed:
            self._stream.flush()

    def isatty(self) -> bool:
        """Return that this is a terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._stream.fileno()


def drawing_console(stream: TextIO | None = None, **options: Any) -> Console:
    """Return rich's console for a stream, with arguments of its own; texts in what it renders move no cursor.

    Args:
        stream: that it writes to. Default: stdout.
        options: further arguments of ``rich.console.Console``.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    stream = stream or sys.stdout
    if not stream.isatty():
        return Console(file=stream, **options)

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PrintableConsole(file=Canvas(stream) if isinstance(stream, Fitted) else stream, **options)  # type: ignore[arg-type]
