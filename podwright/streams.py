"""Standard streams that neither a terminal's encoding, a closed descriptor nor a closed pipe ends with a traceback."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path

from podwright_common.exit_status import CLOSED_PIPE, FAILED
from podwright_common.terminal import fit_terminals, printable

PLAIN = "podwright.plain"  # The name of the error handler that replaces characters a stream's encoding lacks.
PLAIN_BARS = {
    "█": "#",
    "▓": "=",
    "▒": "-",
    "░": ".",
    "▚": "%",
    "▞": "/",
    "▤": "+",
    "▥": ":",
    "▧": ";",
    "▨": "~",
    "·": "_",
}
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}  # Any command may meet them; users solve them.


def set_up_streams() -> None:
    """Open closed streams, replace what their encodings lack, and fit lines to terminals."""
    codecs.register_error(PLAIN, _in_plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `podwright check >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 -- to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a source line may hold what the terminal's encoding lacks
            stream.reconfigure(errors=PLAIN)
    fit_terminals()


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """Return replacements for characters that the terminal's encoding lacks: letters for bars, codes for others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(PLAIN_BARS.get(it) or it.encode("ascii", "backslashreplace").decode() for it in unknown), error.end


def report_os_error(error: OSError) -> int:
    """Return the status of a command that could not read or write a file; raise errors that name none."""
    if not isinstance(error, BrokenPipeError) and error.errno not in STORAGE_ERRORS and error.filename is None:
        raise error
    try:
        sys.stdout.flush()
    except OSError:  # Python would try once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # `podwright explain | head`
        return CLOSED_PIPE
    print(printable(f"podwright: {error.filename or 'cannot write'}: {error.strerror}"), file=sys.stderr)
    return FAILED
