"""Use the HTTP client of huggingface_hub, whichever package that is: httpx before its version 2, then httpx2."""

from __future__ import annotations

from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError

TIMEOUT_S = 10.0

# The client's error for lost connections, and the parent of its answers with an error status.
HubConnectionError: type[Exception] = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


def answers() -> bool:
    """Return whether the hub can be reached: its client tries for a minute before it takes what the cache has."""
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except (OSError, HubConnectionError):  # OSError: HF_HUB_OFFLINE forbids requests
        return False
    return True
