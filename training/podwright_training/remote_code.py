"""Refuse Python code that a model or a tokenizer brings along (``auto_map``): it would run as whoever loads it."""

from __future__ import annotations

from pathlib import Path


def needs_code(error: Exception) -> bool:
    """Return whether transformers refused to load something because its folder or repository has code to run."""
    text = str(error)
    return "trust_remote_code" in text or "custom code" in text


def refusal(name: str | Path) -> str:
    """Return the line for a folder or repository whose code was not run."""
    return (
        f"{name} needs Python code of its own (auto_map, custom_generate), which podwright-train never runs: name one "
        "that transformers loads without, or remove that code and its key from the folder's JSON files"
    )
