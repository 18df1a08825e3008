"""Options of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

AUTO = "auto"  # memory_checkpoint_freq accepts this word.


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Set the folder of checkpoints, how often they are saved and which are kept."""

    checkpoint_dir: str | None = option(
        None, "Folder or s3://bucket/prefix for checkpoints. Default: <run_dir>/checkpoints."
    )
    resume_from_checkpoint: str | None = option(
        None,
        "Folder of checkpoints to start from while checkpoint_dir has none; may be the same folder.",
    )
    init_from: str | None = option(
        None,
        "Weights that a new run starts from: a Hugging Face model with safetensors, by its folder or its identifier on "
        "the hub, a checkpoint of a run, or its folder of checkpoints. Default: random weights.",
    )
    init_state: str = option(
        "weights",
        "State to load from a checkpoint that init_from names; weights: training starts at step 0; all: also the "
        "optimizer's states and the step, so that the schedule continues. The data start anew.",
        choices=("weights", "all"),
    )
    checkpoint_freq: int = option(1000, "Steps between checkpoints; the last step is always saved.", at_least=1)
    keep_checkpoints: int = option(3, "Newest checkpoints to keep.", at_least=1)
    keep_every: int | None = option(
        None, "Also keep the checkpoints at every multiple of this many steps. Default: only the newest.", at_least=1
    )
    async_checkpoints: bool = option(True, "Write checkpoints in the background of the next steps.")
    memory_checkpoint_freq: int | str | None = option(
        None,
        "Steps between checkpoints in the hosts' memory, each with a copy on the next host; auto: choose the interval "
        "that minimizes lost work, from measured times. Default: no checkpoints in memory.",
        at_least=1,
        words=(AUTO,),
    )
    memory_checkpoint_dir: str = option("/dev/shm", "Folder on a tmpfs of each host, for checkpoints in memory.")  # noqa: S108 - a folder of the user's own is made in it

    @property
    def remote_checkpoints(self) -> str | None:
        """Return the URL that checkpoints are copied to, if ``checkpoint_dir`` is one."""
        return self.checkpoint_dir if "://" in (self.checkpoint_dir or "") else None


def conflicts(config: CheckpointOptions) -> Conflicts:
    """Yield the conflicts among these options."""
    if config.keep_every and config.keep_every % config.checkpoint_freq:
        yield (
            ("keep_every", "checkpoint_freq"),
            f"keep_every {config.keep_every} is not a multiple of checkpoint_freq {config.checkpoint_freq}",
        )
    if config.init_from and config.resume_from_checkpoint:
        yield (
            ("init_from", "resume_from_checkpoint"),
            "init_from and resume_from_checkpoint: got both, need one; init_from starts a new run",
        )
    if config.init_state == "all" and not config.init_from:
        yield ("init_state", "init_from"), "init_state all needs init_from, a checkpoint"
    start = config.resume_from_checkpoint or ""
    if "://" in start and start != config.checkpoint_dir:
        yield (
            ("resume_from_checkpoint", "checkpoint_dir"),
            f"resume_from_checkpoint {start} is not checkpoint_dir {config.checkpoint_dir}: copy it to a folder first",
        )
