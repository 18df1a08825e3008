"""Report a boot: one line and one JSON object per step, a table, and one sentence if it failed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Iterable, List

from podwright_bootstrap import contract
from podwright_bootstrap.features import build
from podwright_bootstrap.host import files, log
from podwright_bootstrap.node import Node

CHANGED, UNCHANGED, SKIPPED, DEGRADED, FAILED = "changed", "unchanged", "skipped", "degraded", "failed"


@dataclass(frozen=True)
class Result:
    """The result of one step."""

    step: str
    outcome: str  # CHANGED | UNCHANGED | SKIPPED | DEGRADED | FAILED
    changes: List[str]
    seconds: float
    detail: str = ""  # why it was skipped, degraded or failed
    hint: str = ""

    def log(self, node: Node) -> None:
        """Write one line for people and one JSON line for programs."""
        summary = "; ".join([*self.changes, *([self.detail] if self.detail else [])])
        log.say(f"{self.step:<15} {self.outcome:<9} {self.seconds:6.1f} s  {summary}".rstrip())
        print(json.dumps({"event": "step", "host": node.hostname, "role": node.role, **asdict(self)}), flush=True)


def table(results: list[Result]) -> str:
    """Return a table of all steps, with the sums on the last line."""
    lines = [f"{'step':<15} {'outcome':<9} {'changes':>7} {'seconds':>8}"]
    for r in results:
        why = f"  {r.detail}" if r.outcome == SKIPPED else ""
        lines.append(f"{r.step:<15} {r.outcome:<9} {len(r.changes):>7} {r.seconds:>8.1f}{why}")
    steps = sum(result.outcome != SKIPPED for result in results)
    changes = sum(len(result.changes) for result in results)
    seconds = sum(result.seconds for result in results)
    return "\n".join([*lines, f"{steps} steps, {changes} changes, {seconds:.1f} s"])


def failure(step: str, why: object, *, host: str, hint: str) -> str:
    """Return the one line that people read first."""
    line = f"FAILED on {host} at step {step}: {why}. What to do: {hint}. Log: {contract.PROVISIONING_LOG}"
    return " ".join(line.split())


def warning(result: Result, *, host: str, degraded_feature: str) -> str:
    """Return the one line for a step that failed on a node that works all the same."""
    line = f"WARNING on {host} at step {result.step}: {result.detail}. The node works, without {degraded_feature}."
    return " ".join(f"{line} What to do: {result.hint}.".split())


def save(results: Iterable[Result]) -> None:
    """Save the results for ``--status``; steps that did not run now keep their earlier result."""
    results_by_step = {result.step: result for result in (*load(), *results)}
    files.write_file(
        contract.BOOTSTRAP_JSON, json.dumps([asdict(result) for result in results_by_step.values()], indent=2) + "\n"
    )


def load() -> list[Result]:
    """Return the results of the last boot; empty before the first, or if another version wrote them."""
    try:
        return parse(contract.BOOTSTRAP_JSON.read_text())
    except (OSError, ValueError):
        return []


def parse(text: str) -> list[Result]:
    """Return the results that ``save`` wrote; empty if another version did, or the text is damaged."""
    try:
        return [build(Result, item, strict=True) for item in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return []
