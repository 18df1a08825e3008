"""Run a curation as stages of datatrove's pipelines, on this machine or on Slurm.

A stage's tasks are independent; completed tasks are not run again, so an interrupted curation continues its work.
All of it lies in ``<output>.partial``, whose folder ``dataset`` becomes ``<output>`` at the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dill
import loguru
from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.dedup import (
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.hashing import HashConfig

from podwright_common.process import exit_with_parent
from podwright_training.curation.dataset_manifest import WriteManifest, entries, steps_of
from podwright_training.curation.decontamination import RemoveContaminated, read_evaluation_sets, write_index
from podwright_training.curation.pipeline_steps import ReadDataset, Words, WriteTokens
from podwright_training.curation.quality_filters import ChooseLanguages, JudgeQuality, MaskPersonal
from podwright_training.curation.settings import HASHES_PER_BUCKET, NGRAM_WORDS, CurationSettings
from podwright_training.curation.thresholds import thresholds_of
from podwright_training.data.bad_data import DataError
from podwright_training.data.splits import Split, find_split
from podwright_training.data.token_shards import SUFFIX as TOKENS
from podwright_training.data.tokenizer import Encoder, load_tokenizer
from podwright_training.folder_listing import paths_in
from podwright_training.run_folder import place_of, write_atomically
from podwright_training.run_variables import variables_in_use
from podwright_training.work_folder import begin, work_folder

FAULTS_NAMED = 5  # An error names at most so many faults.
PATTERN_CHARACTERS = frozenset("[]*?")  # a stage would find none of its files, and so no duplicate
EVALUATION_INDEX = "evaluation-sets.npz"  # there: what documents may not share with evaluation sets
SUBMITTED = "submitted.json"  # there: the numbers of the jobs on Slurm
LAUNCHER = "datatrove.tools.launch_pickled_pipeline"
HASH = HashConfig(hash_fc="sha1")  # datatrove's other one needs a version of xxhash below 4


@dataclass(frozen=True)
class CurationStage:
    """One pipeline and the number of its tasks."""

    name: str
    pipeline: list[Any]
    tasks: int


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Options of the jobs."""

    partition: str
    time: str
    memory_gib: int
    workers: int


@dataclass(frozen=True)
class Curation:
    """The curation of one dataset."""

    settings: CurationSettings
    output: Path
    split: Split
    identity: dict[str, Any]  # Digests of the input.
    secrets: Mapping[str, str] = field(default_factory=dict)  # Files by variable; each task reads them.

    @classmethod
    def begin(cls, settings: CurationSettings, output: Path, *, secrets: Mapping[str, str] | None = None) -> Curation:
        """Find the files and make the work folder, or continue in one with the same settings.

        Raises:
            DataError: There is no such dataset or tokenizer, the output exists or has a path that datatrove takes for a
                pattern, or the work folder has other settings.
        """
        if wild := sorted(PATTERN_CHARACTERS.intersection(str(output.absolute()))):
            refused_output = f"output {output.absolute()}: got {' '.join(wild)} in the path"
            raise DataError(f"{refused_output}, which datatrove takes for a pattern: choose another folder")
        output = place_of(output)
        if output.exists():
            raise DataError(f"output {output} exists: remove it, or choose another folder")
        split = find_split(settings.dataset, settings.dataset_config_name, "train")
        if any(name.endswith(TOKENS) for name in split.names):
            raise DataError(f"dataset {settings.dataset} holds tokens, not text")
        tokenizer = load_tokenizer(settings.tokenizer)
        evaluation_sets = read_evaluation_sets(
            settings.decontaminate, columns=settings.evaluation_columns, words=settings.decontamination_words
        )
        identity = {
            "tokenizer_digest": Encoder(tokenizer, add_bos=settings.add_bos).digest,
            "vocabulary": len(tokenizer),
            "files": len(split.names),
            "names_digest": split.digest,
            "contents_digest": split.contents_digest,
            "evaluation_sets": {name: item.described() for name, item in evaluation_sets.items()},
        }
        curation = cls(settings, output, split, identity, secrets or {})
        begun = json.loads(json.dumps(asdict(settings)))
        if not settings.add_bos:
            del begun["add_bos"]  # Work folders of earlier versions do not have it.
        begin(curation.work, {**begun, **identity})
        (curation.work / "dataset").mkdir(exist_ok=True)
        write_index(curation.work / EVALUATION_INDEX, evaluation_sets.values())
        return curation

    @property
    def work(self) -> Path:
        """Return the folder of everything but the result."""
        return work_folder(self.output)

    def stages(self) -> Iterator[CurationStage]:
        """Yield the stages in order."""
        settings, work = self.settings, self.work
        exact = ExactDedupConfig(content_getter=_text, hash_config=HASH)
        near = MinhashConfig(
            n_grams=NGRAM_WORDS, num_buckets=settings.buckets, hashes_per_bucket=HASHES_PER_BUCKET, hash_config=HASH
        )
        names = ("documents", "exact", "exact-found", "near", "near-found", "kept")
        folder = {name: str(work / name) for name in names}
        documents = [
            ReadDataset(
                self.split,
                work / "faults",
                text_column=settings.text_column,
                max_bad_records=settings.max_bad_records,
                max_bad_shards=settings.max_bad_shards,
                secrets=self.secrets,
            ),
            *self._filters(),
            ParquetWriter(folder["documents"], compression="zstd", use_content_defined_chunking=False, adapter=_row),
        ]
        yield CurationStage("documents", documents, settings.tasks)
        read = [ParquetReader(folder["documents"], read_metadata=False)]
        if settings.exact:
            yield CurationStage(
                "exact-signatures", [*read, ExactDedupSignature(folder["exact"], exact)], settings.tasks
            )
            yield CurationStage("exact-pairs", [ExactFindDedups(folder["exact"], folder["exact-found"], exact)], 1)
            read = [*read, ExactDedupFilter(folder["exact-found"], exact)]
        if settings.near:
            signatures = MinhashDedupSignature(folder["near"], near, language=Words())
            yield CurationStage("near-signatures", [*read, signatures], settings.tasks)
            buckets = MinhashDedupBuckets(folder["near"], folder["near-found"], config=near)
            yield CurationStage("near-pairs", [buckets], settings.buckets)
            yield CurationStage("near-clusters", [MinhashDedupCluster(folder["near-found"], folder["kept"], near)], 1)
            read = [*read, MinhashDedupFilter(folder["kept"])]
        tokens = WriteTokens(
            work / "dataset",
            work / "shards",
            tokenizer=settings.tokenizer,
            add_bos=settings.add_bos,
            validation_fraction=settings.validation_fraction,
            secrets=self.secrets,
        )
        yield CurationStage("tokens", [*read, tokens], settings.tasks)
        manifest = WriteManifest(settings, identity=self.identity, work=work, output=self.output)
        yield CurationStage("manifest", [manifest], 1)

    def _filters(self) -> Iterator[Any]:
        settings = self.settings
        threshold = settings.thresholds.get("language_threshold", 0)
        if settings.languages or settings.filters or threshold:
            yield ChooseLanguages(settings.languages, threshold=threshold)
        for name in settings.filters:
            yield JudgeQuality(name, thresholds_of(name, settings.thresholds))
        if settings.decontaminate:
            names = tuple(settings.decontaminate)
            yield RemoveContaminated(self.work / EVALUATION_INDEX, names, words=settings.decontamination_words)
        if self.settings.mask_personal:
            yield MaskPersonal()

    def run(self, *, workers: int, on_stage: Any) -> None:
        """Run all stages here; ``on_stage`` is called with each before it begins, and returns a context for it."""
        for stage in self.stages():
            logs = self.work / "logs" / stage.name
            executor = _Here(
                stage.pipeline, tasks=stage.tasks, workers=min(workers, stage.tasks), logging_dir=str(logs)
            )
            with on_stage(stage, logs / "completions"):
                executor.run()
            if not paths_in(self.work / "documents", "*.parquet"):
                raise DataError(self._nothing_left())
        shutil.rmtree(self.work)

    def _nothing_left(self) -> str:
        done = "; ".join(
            f"{step['documents']:,} read" if step["step"] == "read" else _removed(step)
            for step in steps_of(self.work)
            if step["step"] == "read" or step["removed"]
        )
        message = f"dataset {self.settings.dataset}: no document is left: {done}"
        faults = list(entries(self.work / "faults"))
        return message + "".join(f"\n{fault['place']}: {fault['reason']}" for fault in faults[:FAULTS_NAMED])

    def submit(self, slurm: Slurm) -> str:
        """Submit each stage as an array job that waits for the one before; return the last job's id.

        Raises:
            DataError: There is no Slurm here, jobs of this curation are still there, or Slurm refuses one.
        """
        if shutil.which("sbatch") is None:
            raise DataError("partition: there is no sbatch on PATH; run this on a node of the cluster")
        submitted = self.work / SUBMITTED
        before = json.loads(submitted.read_text()) if submitted.exists() else []
        if queued_jobs := _in_queue(before):
            raise DataError(
                f"{self.work}: jobs {', '.join(queued_jobs)} are queued already; wait for them, or scancel them"
            )
        jobs = self._jobs(slurm)
        try:
            with _silence(), variables_in_use(dict.fromkeys(self.secrets)):  # sbatch would copy them into the job
                jobs[-1].run()  # and, before it, those that it waits for
        except subprocess.CalledProcessError as error:
            raise DataError(f"sbatch refused a job of {self.work}; those before it are cancelled") from error
        finally:
            ids = [str(job.job_id) for job in jobs if job.job_id not in {None, -1}]
            write_atomically(submitted, json.dumps(ids) + "\n")
            if jobs[-1].job_id is None and ids:
                subprocess.run(["scancel", *ids], check=False)
        return str(jobs[-1].job_id)

    def _jobs(self, slurm: Slurm) -> list[_OnSlurm]:
        jobs: list[_OnSlurm] = []
        for stage in self.stages():
            job = _OnSlurm(
                stage.pipeline,
                tasks=stage.tasks,
                time=slurm.time,
                partition=slurm.partition,
                mem_per_cpu_gb=slurm.memory_gib,
                workers=slurm.workers,
                job_name=f"{self.output.name}-{stage.name}",
                qos="",
                depends=jobs[-1] if jobs else None,
                logging_dir=str(self.work / "logs" / stage.name),
                sbatch_args={"kill-on-invalid-dep": "yes"},  # a task that fails ends the jobs after its own
            )
            jobs.append(job)
        return jobs


class _OnSlurm(SlurmPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """Run tasks by this Python, whose environment stays while a job needs it."""

    def launch_merge_stats(self) -> None:
        """Submit no further job: the manifest adds up the counts."""

    def get_launch_file_contents(self, sbatch_args: dict[str, Any], run_script: str) -> str:
        """Return the batch script."""
        folder, name = Path(sys.executable).parent.resolve(), Path(sys.executable).name
        program = f"{shlex.quote(str(folder / name))} -m {LAUNCHER}"
        replaced = run_script.replace(LAUNCHER.rsplit(".", 1)[1], program, 1)
        script: str = super().get_launch_file_contents(sbatch_args, replaced)
        return script


def _in_queue(jobs: list[str]) -> list[str]:
    """Return those of the jobs that wait or run and belong to this user: Slurm reuses job ids."""
    if not jobs:
        return []
    command = ["squeue", "--noheader", f"--user={os.geteuid()}", "--format=%A", f"--jobs={','.join(jobs)}"]
    squeue = subprocess.run(command, capture_output=True, text=True, check=False)  # fails if Slurm has forgotten all
    return sorted(set(squeue.stdout.split()), key=int)


class _Here(LocalPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """Run tasks silently, because their logs have datatrove's output, and end their processes with this one."""

    def run(self) -> None:
        """Run the tasks that are not complete."""
        ranks = self.get_incomplete_ranks()
        if self.workers == 1:
            for rank in ranks:
                with _silence():
                    deepcopy(self)._run_for_rank(rank)  # noqa: SLF001 -- what datatrove's own executors call
        elif ranks:
            context = multiprocessing.get_context("spawn")
            workers = min(self.workers, len(ranks))
            watch_parent = partial(exit_with_parent, os.getpid(), poll_s=1)
            with ProcessPoolExecutor(workers, context, initializer=watch_parent) as pool:
                list(pool.map(partial(_run_task, dill.dumps(self)), ranks))


def _run_task(executor: bytes, rank: int) -> None:
    with _silence():
        dill.loads(executor)._run_for_rank(rank)  # noqa: S301, SLF001 -- of the process that started this one


@contextmanager
def _silence() -> Iterator[None]:
    loguru.logger.remove()
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        try:
            yield
        finally:
            loguru.logger.remove()  # After each task datatrove adds a logger that writes to the closed file.


def _removed(step: dict[str, Any]) -> str:
    """Return how many documents a step removed, and why."""
    reasons = ", ".join(f"{name} {count:,}" for name, count in step["reasons"].items())
    return f"{step['step']} removed {step['removed']:,}" + (f" ({reasons})" if reasons else "")


def _text(document: Document) -> str:
    return str(document.text)


def _row(_writer: Any, document: Document) -> dict[str, Any]:
    """Return the columns that the stages after the filters need."""
    return {"text": document.text, "id": document.id}
