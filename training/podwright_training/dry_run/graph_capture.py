"""Count the results of ``torch.compile`` on a step: graphs, graph breaks, and functions that are recompiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.debugging import ExplainWithBackend
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from podwright_training.dry_run.rank_step import Compilation
from podwright_training.model import device_compiler
from podwright_training.replacement import replaced

PACKAGE = Path(__file__).parents[1]


class Compiler:
    """Capture graphs as ``torch.compile`` does on a GPU, and run their operations one by one."""

    def __init__(self) -> None:
        self._graphs = ExplainWithBackend("eager")

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Let whatever is compiled until the block ends be captured here."""
        compile_ = torch.compile

        def captured(model: Callable[..., Any] | None = None, **options: Any) -> Any:
            return compile_(model, **{**options, "backend": self._graphs})

        torch.compiler.reset()
        clear_compilation_metrics()
        device_compiler.fused.cache_clear()
        with replaced(torch, "compile", captured):
            yield

    def result(self) -> Compilation:
        """Return the captured graphs."""
        breaks = (reason for reason in self._graphs.break_reasons if reason.graph_break)
        again = (item for item in get_compilation_metrics() if item.recompile_reason)
        return Compilation(
            graphs=len(self._graphs.graphs),
            breaks=dict(Counter(f"{_line(item)}: {item.reason.splitlines()[0]}" for item in breaks)),
            recompiles=dict(Counter(f"{item.co_name}: {_last_line(item.recompile_reason)}" for item in again)),
        )


def _line(reason: Any) -> str:
    """Return the innermost line of the trainer."""
    frames = [frame for frame in reason.user_stack if Path(frame.filename).is_relative_to(PACKAGE)]
    return f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}" if frames else "PyTorch"


def _last_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[-1].strip()
