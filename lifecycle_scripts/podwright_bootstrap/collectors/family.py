"""Metrics in Prometheus's text format.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Dict, Iterable, Mapping

COMMAND_LIMIT_S = 20


@dataclass
class Family:
    """One metric and its values by labels; a name ends in its unit, or in ``_total`` where it only grows."""

    name: str
    meaning: str
    samples: Dict[str, float] = field(default_factory=dict)  # value by labels, in the text of the exposition

    def add(self, value: float, **labels: str) -> None:
        """Add a value; one without a place in a double is left out, and so is a second one with the same labels."""
        try:
            number = float(value)
        except OverflowError:
            return
        self.samples.setdefault(_labels(labels), number)

    def text(self) -> str:
        """The lines of the exposition."""
        kind = "counter" if self.name.endswith("_total") else "gauge"
        lines = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} {kind}"]
        lines += [f"{self.name}{labels} {value:.10g}" for labels, value in self.samples.items()]
        return "\n".join(lines) + "\n"


def text(families: Iterable[Family]) -> str:
    """All that have values."""
    return "".join(family.text() for family in families if family.samples)


def ask(*command: str) -> str:
    """Return a program's output; raises ``OSError`` or ``SubprocessError`` if it does not answer."""
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=COMMAND_LIMIT_S, check=True
    ).stdout


def _labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in sorted(labels.items())]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    value = value.encode(errors="surrogateescape").decode(errors="replace")  # a file's name may be any bytes
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
