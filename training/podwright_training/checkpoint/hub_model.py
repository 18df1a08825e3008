"""Find a model of the Hugging Face hub: one rank downloads it, all read it from the cache."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from podwright_training.data.bad_data import DataError, first_line
from podwright_training.data.hub_client import GATED_HINT, HubConnectionError
from podwright_training.data.tokenizer import FirstRank

IDENTIFIER = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FILES = ["config.json", "model.safetensors.index.json", "*.safetensors"]
ERRORS = (OSError, ValueError, HfHubHTTPError, HubConnectionError)


def is_identifier(name: str) -> bool:
    """Return whether ``name`` is a model of the hub, OWNER/NAME, and not a folder here."""
    return bool(IDENTIFIER.fullmatch(name)) and not Path(name).exists()


def download(name: str, of_first_rank: FirstRank) -> None:
    """Download configuration and weights into the hub's cache, on the first rank of a job.

    Raises:
        DataError: The hub does not serve them to this machine; raised on all ranks.
    """
    of_first_rank(f"init_from {name}", lambda: _download(name))


def folder_of(name: str) -> Path:
    """Return the folder of a model: ``name`` itself, or where the cache of this host has it.

    Raises:
        DataError: This host's cache does not have it.
    """
    if not is_identifier(name):
        return Path(name)
    try:
        return Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    except ERRORS as error:
        raise DataError(
            f"init_from {name}: the first rank downloaded it, but this host does not see it; set HF_HOME to a folder "
            "on the shared file system"
        ) from error


def _download(name: str) -> str:
    try:
        return snapshot_download(name, allow_patterns=FILES)
    except ERRORS as error:
        raise DataError(
            f"init_from {name!r}: no folder here, and the Hugging Face hub does not serve it to this machine "
            f"({first_line(error)}); where there is network, run `hf download {name} --local-dir FOLDER` and give that "
            f"folder; {GATED_HINT}"
        ) from error
