"""Errors of the commands for a running cluster, and their exit statuses.

0 is success, 1 a failed operation, 2 a wrong argument, 3 an AWS that refused or was out of reach, 130 Ctrl-C.
"""

from __future__ import annotations

from podwright.aws_errors import ABSENT
from podwright.errors import PodwrightError
from podwright_common.exit_status import OUT_OF_REACH, WRONG_INPUT


class OperationError(PodwrightError):
    """An operation failed, or did only a part of its work."""


class ArgumentError(OperationError):
    """An argument names something that does not exist, or is missing; the message lists what exists."""

    exit_status = WRONG_INPUT


class AwsError(OperationError):
    """AWS refused a call or could not be reached.

    Args:
        message: the call and the reason, in one line.
        hint: what to do.
        code: AWS's error code, or botocore's class if no answer came.
        denied: whether a permission is missing for this call alone.
    """

    exit_status = OUT_OF_REACH

    def __init__(self, message: str, hint: str = "", *, code: str = "", denied: bool = False) -> None:
        super().__init__(message, hint)
        self.code = code
        self.denied = denied

    @property
    def absent(self) -> bool:
        """Return whether the resource does not exist."""
        return self.code in ABSENT
