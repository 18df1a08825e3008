"""Options of the run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from podwright_training.config.option import Conflicts, mapping_option, option
from podwright_training.run_variables import SECRETS_TEXT, problems_of_env, problems_of_secrets


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Set the run's folder, preset, device, random seed and environment variables."""

    run_dir: str = option("runs/default", "Folder of the run: config, metrics, checkpoints, results.")
    preset: str | None = option(None, "Preset whose values replace the defaults.")
    device: str = option(
        "auto",
        "Device to compute on; auto: an accelerator if the machine has one, else the CPU.",
        choices=("auto", "cuda", "neuron", "cpu"),
    )
    device_rules: str = option(
        "none",
        "Apply a device's rules on a CPU as well; neuron: refuse float64, shapes that depend on values or change "
        "between steps, and host synchronization within a step.",
        choices=("none", "neuron"),
    )
    seed: int = option(12345, "Random seed of the initial weights and of the data order.", at_least=0)
    deterministic: bool = option(False, "Use deterministic PyTorch algorithms only; may be slower.")
    start_timeout_s: int = option(
        1800, "Longest wait for other ranks until the first step is done, in seconds.", at_least=1
    )
    step_timeout_s: int = option(
        600,
        "Longest wait for other ranks after the first step, in seconds. After half of it, or of start_timeout_s, a "
        "rank dumps its stacks.",
        at_least=1,
    )
    env: Mapping[str, str] = mapping_option("Environment variables of each rank; never secrets.", may_be_secret=True)
    secrets: Mapping[str, str] = mapping_option(SECRETS_TEXT, may_be_secret=True)


def conflicts(config: RunOptions) -> Conflicts:
    """Yield wrong names of variables, and secrets that are no files."""
    yield from ((("env",), problem) for problem in problems_of_env(config.env))
    yield from ((("secrets", "env"), problem) for problem in problems_of_secrets(config.secrets, config.env))
