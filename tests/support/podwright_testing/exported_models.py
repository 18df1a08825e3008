"""Exported models of each family, and the packages that read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_REGISTRY_S = 300
OPTIONS_BY_MODEL: dict[str, dict[str, Any]] = {  # of podwright-train
    "llama": {"model_type": "llama_v3"},
    "scaled": {"model_type": "llama_v3", "rope_scaling_factor": 8, "tie_word_embeddings": 1},
    "mistral": {"model_type": "mistral", "sliding_window": 16},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "qwen3": {"model_type": "llama_v3", "qk_norm": 1},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_local_experts": 4, "qk_norm": 1},
    "glm4_moe": {"model_type": "glm4_moe", "num_local_experts": 4, "n_shared_experts": 1, "router_bias_speed": 0},
}


def installed(folder: Path, *requirements: str) -> Path:
    """Install packages of the registry into a folder, without what they need; skip the test if it does not answer."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_REGISTRY_S)
    except subprocess.TimeoutExpired:
        pytest.skip("the package registry does not answer")
    if done.returncode:
        pytest.skip(f"cannot install {', '.join(requirements)}: {done.stderr.strip().splitlines()[-1:]}")
    return folder
