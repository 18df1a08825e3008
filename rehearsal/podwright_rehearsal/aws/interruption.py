"""Calls that fail on purpose: one changing call, or the next calls of a name.

A changing call is refused before anything is done, or done while its answer is lost. The second is what a broken
network does: the caller cannot know whether the call was done. Or the answers of this call and of all after it come
late: a caller that is stopped meanwhile does not know either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Kind = Literal["refused", "answer lost", "answers late"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Not AWS's; no buckets either: their names have no underscore.
PATH = "/_interruption"
REFUSAL_PATH = "/_refusal"
FAULT_PATH = "/_fault"
EVENT_PATH = "/_event"
LATE_S = 5.0  # longer than Terraform's provider takes to give up when it is interrupted
LATE = "podwright_rehearsal.late"  # in the environment of a request whose answer comes late

# How the operations begin that change nothing, over all services.
READING = ("Describe", "Get", "List", "Head", "Lookup", "Search", "AssumeRole", "Validate")
READING_METHODS = ("GET", "HEAD", "OPTIONS")


def changes_something(*, operation: str, method: str) -> bool:
    """Return True if a call may change the account; ``operation`` is empty for REST calls."""
    return not operation.startswith(READING) if operation else method not in READING_METHODS


@dataclass
class Interruption:
    """Fail the call of number ``at`` (from 1) among the changing ones whose name has ``call`` in it.

    If answers come late, those of all later calls do too, whatever their names.

    ``changing_calls`` are the names of all changing calls so far, such as ``ec2 CreateVpc``.
    """

    at: int | None = None
    kind: Kind = "refused"
    call: str = ""
    changing_calls: list[str] = field(default_factory=list)

    def strike(self, name: str) -> Kind | None:
        """Count a changing call; return how it fails, if it does."""
        self.changing_calls.append(name)
        number = sum(self.call in name_so_far for name_so_far in self.changing_calls)
        if self.kind == "answers late":
            return self.kind if self.at is not None and number >= self.at > 0 else None
        return self.kind if self.call in name and number == self.at else None


@dataclass
class Refusal:
    """Refuse the next ``times`` calls that have ``call`` in their name, such as ``sagemaker ListClusterNodes``."""

    call: str
    code: str
    message: str
    times: int

    def strike(self, name: str) -> bool:
        """Return True if this call is refused, and count it."""
        is_due = self.times > 0 and self.call in name
        self.times -= is_due
        return is_due


class LateAnswers:
    """WSGI middleware that answers late where a test asked for it; other requests go on meanwhile."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer at once, or after ``LATE_S``."""
        answer = self._application(environ, start_response)
        if environ.get(LATE):
            time.sleep(LATE_S)
        return answer
