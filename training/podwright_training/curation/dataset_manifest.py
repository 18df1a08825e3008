"""Describe a curated dataset: documents that were read, removed by each step, and written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from podwright_training.curation.languages import MACROLANGUAGES
from podwright_training.curation.settings import FILTERS, CurationSettings
from podwright_training.curation.thresholds import thresholds_in_use
from podwright_training.data.splits import SPLITS
from podwright_training.data.token_shards import remove_unfinished
from podwright_training.folder_listing import paths_in
from podwright_training.run_folder import commit_folder, write_atomically

MANIFEST = "manifest.json"
FAULTS_SHOWN = 100
MUCH = 0.5  # A step that removes this share of the documents, or of those in a language, is pointed out,
MANY_DOCUMENTS = 10  # if they are so many.
CHANGES = ("changed_documents", "removed_lines", "not_judged")  # counts of a step beside those it removed
MASKED = "masked_"  # begins the counts of what was masked
NAMES = {  # part of datatrove's name of a step that may remove or change documents: ours
    "READER: dataset": "read",
    "FILTER: languages": "languages",
    **{f"FILTER: {name}": name for name in FILTERS},
    "FILTER: decontamination": "decontamination",
    "FORMAT: mask personal": "mask personal",
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
            "thresholds": thresholds_in_use(self.settings.filters, self.settings.thresholds),
            **self.identity,
            "steps": list(steps_of(self.work)),
            "faults": list(entries(self.work / "faults"))[:FAULTS_SHOWN],
            "splits": {split: _total(shard for shard in shards if shard["split"] == split) for split in SPLITS},
            "shards": shards,
        }
        write_atomically(dataset_folder / MANIFEST, json.dumps(content, indent=1) + "\n")
        remove_unfinished(dataset_folder)
        commit_folder(dataset_folder, self.output)


def steps_of(work: Path) -> Iterator[dict[str, Any]]:
    """Yield each step that may remove or change documents: how many it got, and how many it removed for which reason.

    A step also has the languages that it met, its changes inside of documents, and the clusters of near duplicates.
    """
    for stage in ("documents", "tokens"):
        totals: dict[int, tuple[str, Counter[str]]] = {}
        for step_number, datatrove_name, stats in _stats(work, stage):
            counts = totals.setdefault(step_number, (datatrove_name, Counter()))[1]
            counts.update({name: _count(value) for name, value in stats.items()})
        for datatrove_name, counts in totals.values():
            name = next((label for part, label in NAMES.items() if part in datatrove_name), None)
            if name == "read":
                yield {"step": name, "files": counts["files"], "documents": counts["documents"]}
            elif name:
                step = {"step": name, "documents": counts["total"], "removed": counts["dropped"]}
                step["reasons"] = _beginning(counts, "dropped_")
                if name == "languages":
                    step["languages"] = _beginning(counts, "language_")
                elif by_language := _beginning(counts, "removed_by_language_"):
                    step["removed_by_language"] = by_language
                step |= {key: value for key, value in counts.items() if key in CHANGES or key.startswith(MASKED)}
                if name == "near duplicates":
                    step |= _clusters(work)
                yield step


def _stats(work: Path, stage: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield number, name and statistics of each step of a stage, for each of its tasks."""
    for file in paths_in(work / "logs" / stage / "stats", "*.json"):
        for step_number, step in enumerate(json.loads(file.read_text())):
            yield step_number, step["name"], step["stats"]


def _beginning(counts: Counter[str], prefix: str) -> dict[str, int]:
    """Return the counts whose names begin with a prefix, by the other part of the name, the largest first."""
    return {key.removeprefix(prefix): value for key, value in counts.most_common() if key.startswith(prefix)}


def _clusters(work: Path) -> dict[str, int]:
    """Return number and size of the clusters of near duplicates, each of which leaves one document."""
    sizes = [stats["cluster_size"] for _, _, stats in _stats(work, "near-clusters") if stats.get("cluster_size")]
    return {  # datatrove leaves out what follows from the total
        "clusters": sum(int(size.get("n", 1)) for size in sizes),
        "largest_cluster": max(
            (int(size.get("max") or size.get("mean") or size["total"]) for size in sizes), default=0
        ),
    }


def _count(value: Any) -> int:
    return int(value["total"] if isinstance(value, dict) else value)


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records that the tasks of a stage wrote."""
    for file in paths_in(folder, "*.json"):
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
        share = step["removed"] / max(step["documents"], 1)
        details = [_named(step["reasons"]), _changes(step), _named(step.get("languages", {}), " are in ")]
        details_text = "; ".join(filter(None, details))
        yield f"{step['step']:{width}}  {-step['removed']:>12,} {share:6.1%}" + (
            f"  {details_text}" * bool(details_text)
        )
    yield from _evaluation_lines(manifest["evaluation_sets"])
    yield from _warnings(manifest)
    for fault in manifest["faults"]:
        yield f"skipped {fault['kind']} {fault['place']}: {fault['reason']}"
    for split, total in manifest["splits"].items():
        yield f"{split}: {total['documents']:,} documents, {total['tokens']:,} tokens in {total['shards']:,} shards"


def _evaluation_lines(evaluation_sets: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each evaluation set that documents were compared with."""
    for name, counts in evaluation_sets.items():
        compared = f"{counts['texts']:,} texts of {counts['files']:,} files"
        textless = f"{counts['records_without_text']:,} of {counts['records']:,} records have no text in the columns"
        yield f"evaluation set {name}: compared {compared}; {counts['short_texts']:,} are too short; {textless}"


def _named(counts: dict[str, int], separator: str = "") -> str:
    if separator:
        return ", ".join(f"{count:,}{separator}{name}" for name, count in counts.items())
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _changes(step: dict[str, Any]) -> str:
    """Return what a step did besides removing documents."""
    texts = {
        "changed_documents": "changed {:,} documents",
        "removed_lines": "removed {:,} lines of them",
        "not_judged": "did not judge {:,} of source code",
        "clusters": "found {:,} clusters",
        "largest_cluster": "the largest of {:,} documents",
    }
    changes = [text.format(step[key]) for key, text in texts.items() if step.get(key)]
    masked = {key.removeprefix(MASKED).replace("_", " "): step[key] for key in step if key.startswith(MASKED)}
    return ", ".join([*changes, *(f"{count:,} {kind}" for kind, count in masked.items())])


def _warnings(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each step that removed much, of all documents or of a language, with its main reason."""
    documents_by_language: Counter[str] = Counter()
    for step in manifest["steps"]:
        reasons = step.get("reasons", {})
        removed, documents = step.get("removed", 0), step["documents"]
        if removed >= max(MANY_DOCUMENTS, MUCH * documents) and reasons:
            main_reason, count = max(reasons.items(), key=lambda item: item[1])
            yield f"{step['step']} removed {removed:,} of {documents:,} documents, {count:,} for {main_reason}"
        for language, removed_documents in step.get("removed_by_language", {}).items():
            before = documents_by_language[language]
            if removed_documents >= max(MANY_DOCUMENTS, MUCH * before) and removed_documents < removed:
                yield f"{step['step']} removed {removed_documents:,} of {before:,} documents in {language}"
        documents_by_language.update(step.get("languages", {}))
        documents_by_language.subtract(step.get("removed_by_language", {}))
    if present := {MACROLANGUAGES.get(code, code) for code in documents_by_language} | set(documents_by_language):
        absent = [code for code in manifest["settings"]["languages"] if code not in present]
        yield from (f"languages: no document is in {code}" for code in absent)
