"""Describe a curated dataset: documents that were read, removed by each step, and written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from podwright_training.curation.settings import CurationSettings
from podwright_training.data.splits import SPLITS
from podwright_training.run_folder import commit_folder, write_atomically

MANIFEST = "manifest.json"
FAULTS_SHOWN = 100
NAMES = {  # part of datatrove's name of a step that may remove documents: ours
    "READER: dataset": "read",
    "Lambda": "languages",
    "Gopher Quality": "gopher_quality",
    "Gopher Repetition": "gopher_repetition",
    "C4 Quality": "c4",
    "FineWeb Quality": "fineweb",
    "exact-deduplication stage 3": "exact duplicates",
    "MinHash stage 4": "near duplicates",
}


class WriteManifest(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Write the manifest and rename the folder to its final name."""

    type = "💽 - WRITER"
    name = "manifest"

    def __init__(self, settings: CurationSettings, *, identity: dict[str, Any], work: Path, output: Path) -> None:
        super().__init__()
        self.settings, self.identity, self.work, self.output = settings, identity, work, output

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        """Write the manifest once all tasks of the stages before are complete."""
        del data, rank, world_size
        if self.output.exists():
            return  # a second start after the rename
        dataset_folder = self.work / "dataset"
        shards = list(entries(self.work / "shards"))
        content = {
            "settings": asdict(self.settings),
            **self.identity,
            "steps": list(steps_of(self.work)),
            "faults": list(entries(self.work / "faults"))[:FAULTS_SHOWN],
            "splits": {split: _total(shard for shard in shards if shard["split"] == split) for split in SPLITS},
            "shards": shards,
        }
        write_atomically(dataset_folder / MANIFEST, json.dumps(content, indent=1) + "\n")
        commit_folder(dataset_folder, self.output)


def steps_of(work: Path) -> Iterator[dict[str, Any]]:
    """Yield each step that may remove documents: how many it got, and how many it removed for each reason."""
    for stage in ("documents", "tokens"):
        totals: dict[int, tuple[str, Counter[str]]] = {}
        for file in sorted((work / "logs" / stage / "stats").glob("*.json")):
            for step_number, step in enumerate(json.loads(file.read_text())):
                counts = totals.setdefault(step_number, (step["name"], Counter()))[1]
                counts.update({name: _count(value) for name, value in step["stats"].items()})
        for theirs, counts in totals.values():
            name = next((label for part, label in NAMES.items() if part in theirs), None)
            if name == "read":
                yield {"step": name, "files": counts["files"], "documents": counts["documents"]}
            elif name:
                reasons = {
                    key.removeprefix("dropped_"): value for key, value in counts.items() if key.startswith("dropped_")
                }
                yield {"step": name, "documents": counts["total"], "removed": counts["dropped"], "reasons": reasons}


def _count(value: Any) -> int:
    return int(value["total"] if isinstance(value, dict) else value)


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records that the tasks of a stage wrote."""
    for file in sorted(folder.glob("*.json")):
        yield from json.loads(file.read_text())


def _total(shards: Iterable[dict[str, Any]]) -> dict[str, int]:
    listed = list(shards)
    return {
        "shards": len(listed),
        "documents": sum(shard["documents"] for shard in listed),
        "tokens": sum(shard["tokens"] for shard in listed),
    }


def lines(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the manifest's counts for people."""
    steps = manifest["steps"]
    width = max((len(step["step"]) for step in steps), default=0)
    for step in steps:
        if step["step"] == "read":
            yield f"{'read':{width}}  {step['documents']:>12,} documents of {step['files']:,} files"
            continue
        reasons = ", ".join(f"{name} {count:,}" for name, count in sorted(step["reasons"].items()))
        share = step["removed"] / max(step["documents"], 1)
        yield f"{step['step']:{width}}  {-step['removed']:>12,} {share:6.1%}" + (f"  {reasons}" if reasons else "")
    for fault in manifest["faults"]:
        yield f"skipped {fault['kind']} {fault['place']}: {fault['reason']}"
    for split, total in manifest["splits"].items():
        yield f"{split}: {total['documents']:,} documents, {total['tokens']:,} tokens in {total['shards']:,} shards"
