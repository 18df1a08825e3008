"""AWS's two kinds of errors: of a request, and of a resource handler."""

from __future__ import annotations

from podwright.errors import PodwrightError


class AwsError(PodwrightError):
    """A refused request: the HTTP answer of AWS's JSON protocols.

    Args:
        code: the name of the error, for example ``FileSystemNotFound``.
        message: what was given, what is allowed.
        members: further members of the answer.
    """

    def __init__(self, code: str, message: str, **members: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.members = members

    def body(self) -> dict[str, str]:
        """Return the answer's JSON: FSx has ``Message``, other services ``message``, and SDKs read both."""
        return {"__type": self.code, "message": self.message, "Message": self.message, **self.members}


class HandlerError(PodwrightError):
    """A request accepted by Cloud Control that its resource handler then failed: ends in a FAILED progress event.

    Args:
        code: a ``HandlerErrorCode``, for example ``InvalidRequest``.
        message: every problem found.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
