"""The two ways in which AWS says no."""

from __future__ import annotations

from podwright.errors import PodwrightError


class AwsError(PodwrightError):
    """A refused request: the HTTP answer of AWS's JSON protocols.

    Args:
        code: the error's shape name, for example ``FileSystemNotFound``.
        message: what was given, what is allowed.
        members: further members of the shape.
    """

    def __init__(self, code: str, message: str, **members: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.members = members

    def body(self) -> dict[str, str]:
        """The answer's JSON; FSx spells the member ``Message``, the other services ``message``, and SDKs read both."""
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
