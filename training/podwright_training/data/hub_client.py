"""Use the HTTP client of huggingface_hub, whichever package that is: httpx before its version 2, then httpx2."""

from __future__ import annotations

from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError

TIMEOUT_S = 10.0

# The client's error for lost connections, and the parent of its answers with an error status.
HubConnectionError: type[Exception] = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")

GATED_HINT = "if it is gated or private, put your token into a file that only you can read: secrets HF_TOKEN=/fsx/…"
FORBIDDEN = (401, 403)  # The hub also answers so about what does not exist, to requests without a token.


def token_hint(error: BaseException | None) -> str:
    """Return what to do about an answer that asks for a token; empty about any other error."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) in FORBIDDEN:
            return f"; {GATED_HINT}"
        error = error.__cause__ or error.__context__
    return ""


def answers() -> bool:
    """Return whether the hub can be reached: its client tries for a minute before it takes what the cache has."""
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except (OSError, HubConnectionError):  # OSError: HF_HUB_OFFLINE forbids requests
        return False
    return True
