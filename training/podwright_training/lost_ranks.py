"""Say in one line that this rank waited for another one, which is gone or late."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch.distributed as dist

from podwright_training.data.bad_data import first_line
from podwright_training.errors import LostRanksError

PACKAGE = Path(__file__).parent
GLOO = re.compile(r"\[\S*gloo/\S*\] ")  # how its errors begin: with its own file and line
LOST = re.compile(
    r"(closed|reset) by peer|broken pipe|connection refused|no route to host|timed out|timeout|likely closed"
    r"|remote process exited|was aborted",
    re.IGNORECASE,
)
PORT = re.compile(r"(?<=\]):\d+")


def lost_ranks_error(error: BaseException | None, silent: str) -> LostRanksError | None:
    """Return the error in one line if a rank raised it that waited for another one, which ``silent`` names."""
    if isinstance(error, LostRanksError):
        return error
    reason = first_line(error) if isinstance(error, RuntimeError) else ""
    of_messages = GLOO.search(reason) or isinstance(error, dist.DistError)
    if error is None or not of_messages or not LOST.search(reason):
        return None
    # The second sentence is advice that does not apply here.
    reason, _, _ = PORT.sub("", GLOO.sub("", reason)).strip().rstrip(".").partition(". ")
    cause, hint = ("another rank is gone or late", "the rank that failed first has the reason")
    if silent:
        cause, hint = f"{silent} stands still", "its host hangs, or its process was stopped"
    return LostRanksError(f"{cause} ({reason}), while this one was at {_own_line(error)}; {hint}")


def _own_line(error: BaseException) -> str:
    """Return the innermost line of the trainer in an error's stack."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    return f"{Path(own_frames[-1].filename).relative_to(PACKAGE)}:{own_frames[-1].lineno}"
