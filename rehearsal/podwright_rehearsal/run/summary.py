"""The summary of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Summary:
    """The figures of a rehearsal: one field or key a line; some values have several lines."""

    resources_applied: int = 0
    second_plan: str = ""
    nodes_idle: str = ""
    preparation: dict[str, str] = field(default_factory=dict)  # Result by step.
    ranks: str = ""
    loss: str = ""
    kill: str = ""
    perplexity: str = ""
    slurm: dict[str, str] = field(default_factory=dict)  # Output by command.
    resources_left: str = ""
    wall_time: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value of each line, for steps that ran."""
        rows: list[tuple[str, str]] = []
        for name, value in vars(self).items():
            rows += value.items() if isinstance(value, dict) else [(name.replace("_", " "), str(value))]
        return [(name, value) for name, value in rows if value]
