"""Kill a training job with SIGKILL, again and again, mostly while it writes checkpoints, and see what is lost: nothing.

    python bench/kill_campaign.py [--kills 100] [--ranks 2 4 2,3,4] [--steps 40] [--seed 0]

Smallest: python bench/kill_campaign.py --kills 1 --ranks 2 --steps 8

Trains tiny models on 2 and on 4 gloo ranks, and on a number of ranks that changes with every start. Each job is killed
at a drawn moment, all ranks at once as Slurm and a power cut do, and started again with the same command until the run
is complete. Then every step's loss, gradient norm and batch must be that of an undisturbed run: bit for bit on as many
ranks, to 1e-6 where their number changed. After each kill the newest checkpoint must be at least as new as before, and
the next start must resume from it.

This process imports torch once and forks the ranks: a start takes a second instead of ten. The product has no hooks for
this; the forked ranks have some of its functions wrapped, so that they mark which of them they are in.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers.models.auto.tokenization_auto  # noqa: F401 -- before ranks are forked, as torch

from podwright_training.__main__ import main as podwright_train
from podwright_training.checkpoint import checkpoint_writer, saver, step_folder
from podwright_training.data.stream import PackedStream
from podwright_training.events import StartEvent, TrainEvent, ValidationEvent
from podwright_training.loop import trainer
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import as_flag

# What the ranks do, and how often a kill is aimed at it. The loop and the background are two threads.
START, DATA, STEP, STAGING = "start-up", "data", "step", "staging"
CLEAR, TENSORS, HASHES, MANIFEST, RENAME, RETENTION, BETWEEN = (
    "clearing",
    "tensors",
    "hashes",
    "manifest",
    "rename",
    "retention",
    "waiting for other ranks",
)
AIMS = {START: 2, DATA: 2, STAGING: 3, CLEAR: 1, TENSORS: 6, HASHES: 3, MANIFEST: 3, RENAME: 4, RETENTION: 3}
PHASES = ("", START, DATA, STEP, STAGING, CLEAR, TENSORS, HASHES, MANIFEST, RENAME, RETENTION, BETWEEN)
FIRST_RANK_ONLY = (CLEAR, MANIFEST, RENAME, RETENTION)

LOOP, BACKGROUND = 0, 1
MOST_RANKS = 4
GLOBAL_BATCH = 12  # sequences; 2, 3 and 4 ranks divide it
CHECKPOINT_FREQ = 2
TOLERANCE = 1e-6
SECONDS = struct.Struct("dd")  # spent in a phase, times it was entered


class Marks:
    """Memory that the ranks share with this process: which phase each thread is in, and how long phases take."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)
        self._started = 0.0

    def clear(self) -> None:
        """All ranks are about to start."""
        self._memory[: 2 * MOST_RANKS] = bytes([PHASES.index(START), 0] * MOST_RANKS)
        self._started = time.perf_counter()

    @contextmanager
    def during(self, phase: str, rank: int, thread: int) -> Iterator[None]:
        """Mark what a thread does; time counts on the first rank."""
        slot, begin = 2 * rank + thread, time.perf_counter()
        before = self._memory[slot]
        if before == PHASES.index(START) and rank == 0:
            self._count(START, begin - self._started)
        self._memory[slot] = PHASES.index(phase)
        try:
            yield
        finally:
            self._memory[slot] = PHASES.index(STEP) if thread == LOOP else before
            if rank == 0:
                self._count(phase, time.perf_counter() - begin)

    def mean_s(self, phase: str) -> float:
        """Mean seconds in a phase so far."""
        spent, entered = SECONDS.unpack_from(self._memory, self._at(phase))
        return float(spent / max(entered, 1))

    def fell_in(self, ranks: int) -> str:
        """Return the phase of the job: of the first thread that was saving, or else the loop of the first rank."""
        saving = [self._memory[2 * rank + BACKGROUND] for rank in range(ranks)]
        return PHASES[next(filter(None, saving), self._memory[LOOP])]

    def _count(self, phase: str, seconds: float) -> None:
        spent, entered = SECONDS.unpack_from(self._memory, self._at(phase))
        SECONDS.pack_into(self._memory, self._at(phase), spent + seconds, entered + 1)

    @staticmethod
    def _at(phase: str) -> int:
        return 2 * MOST_RANKS + SECONDS.size * PHASES.index(phase)


@dataclass(frozen=True)
class Aim:
    """A moment to kill at: some seconds after a rank does something for the n-th time."""

    phase: str
    occurrence: int
    rank: int
    delay_s: float

    @classmethod
    def draw(cls, dice: random.Random, ranks: int, marks: Marks) -> Aim:
        """Weighted towards the writing of checkpoints; uniform over the time a phase takes."""
        (phase,) = dice.choices(list(AIMS), weights=list(AIMS.values()))
        length_s = marks.mean_s(phase) + (marks.mean_s(STEP) if phase == DATA else 0)
        return cls(
            phase,
            occurrence=dice.randint(1, 2 if phase != DATA else 2 * CHECKPOINT_FREQ),
            rank=0 if phase in FIRST_RANK_ONLY else dice.randrange(ranks),
            delay_s=dice.uniform(0, length_s),
        )


@dataclass
class Run:
    """One run in its folder, started as often as it takes."""

    folder: RunFolder
    dataset: Path
    marks: Marks
    steps: int
    starts: list[int] = field(default_factory=list)  # ranks of each start
    fell_in: list[str] = field(default_factory=list)
    started: int = 0  # starts that wrote their event

    def start(self, ranks: int, aim: Aim | None = None) -> bool:
        """Start the job; whether it came to its end, rather than to that of ``aim``."""
        before = step_folder.newest(self.folder.checkpoints)
        self.starts.append(ranks)
        finished = self._run(ranks, aim)
        self._check_resumed(before)
        after = step_folder.newest(self.folder.checkpoints)
        if before and (after is None or after.name < before.name):
            sys.exit(f"{self.folder.root}: the newest checkpoint was {before.name}, is {after} after a kill")
        return finished

    def history(self) -> dict[int, TrainEvent]:
        """Each step's last event."""
        return {event.step: event for event in self.folder.events_of(TrainEvent)}

    def _run(self, ranks: int, aim: Aim | None) -> bool:
        self.marks.clear()
        reading, writing = os.pipe()
        port = _free_port()
        pids: list[int] = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, pids[0] if pids else 0)
                os.close(reading)
                self._be_a_rank(rank, ranks, port, functools.partial(_reached, writing, aim, rank))
            os.setpgid(pid, pids[0] if pids else pid)
            pids.append(pid)
        os.close(writing)
        killed = _await(reading, aim)
        if killed:
            os.killpg(pids[0], signal.SIGKILL)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        os.close(reading)
        if killed and set(statuses) != {0}:
            self.fell_in.append(self.marks.fell_in(ranks))
            return False
        if set(statuses) != {0}:
            sys.exit(f"{self.folder.root}: exit statuses {statuses}\n{self.folder.log.read_text()[-3000:]}")
        return True

    def _be_a_rank(self, rank: int, ranks: int, port: int, reached: Callable[[str], None]) -> None:
        """In the forked process: train; does not return."""
        status = 1
        try:
            log = os.open(self.folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            places = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in places.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            _wrap_functions(self.marks, rank, reached)
            reached(START)
            sys.modules["__main__"] = types.ModuleType("__main__")  # data workers would import it, and torch
            status = podwright_train(["train", *self._flags(ranks)])
        except BaseException:  # noqa: BLE001 - nothing may unwind into the campaign, which owns the scratch folder
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    def _flags(self, ranks: int) -> list[str]:
        options = {
            "run_dir": self.folder.root,
            "dataset": self.dataset,
            "tokenizer": self.dataset / "tokenizer",
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_layers": 2,
            "num_heads": 4,
            "max_context_width": 32,
            "data_streams": 12,
            "train_batch_size": GLOBAL_BATCH // ranks,
            "val_batch_size": GLOBAL_BATCH // ranks,
            "validation_batches": 2,
            "max_steps": self.steps,
            "logging_freq": 1,
            "checkpoint_freq": CHECKPOINT_FREQ,
            "keep_checkpoints": 2,
            "lr": 1e-3,
            "bf16": False,
            "device": "cpu",
        }
        return [as_flag(name, value) for name, value in options.items()]

    def _check_resumed(self, expected: Path | None) -> None:
        """The start that was just killed or done must have resumed from ``expected``, if it wrote its event."""
        events = list(self.folder.events_of(StartEvent))
        if len(events) == self.started:
            return
        self.started = len(events)
        resumed = events[-1].resumed_from
        if resumed != (str(expected) if expected else None):
            sys.exit(f"{self.folder.root}: resumed from {resumed}, but {expected} is the newest checkpoint")


def main() -> None:
    """Run the campaign and print its table; exit status 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", nargs="+", default=["2", "4", "2,3,4"], help="of each sort of run; 2,3,4: any")
    parser.add_argument("--steps", type=int, default=40, help="of a run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # else each rank's garbage collection copies the memory of all these modules
    with tempfile.TemporaryDirectory(prefix="kill-campaign.") as scratch:
        dataset = _prepare(Path(scratch))
        sorts = [[int(ranks) for ranks in sort.split(",")] for sort in args.ranks]
        dice = random.Random(args.seed)  # noqa: S311 - not for secrets
        table = campaign(sorts, kills=args.kills, steps=args.steps, dice=dice, scratch=Path(scratch), dataset=dataset)
    print(json.dumps(table, indent=1))


def campaign(
    sorts: Sequence[Sequence[int]], *, kills: int, steps: int, dice: random.Random, scratch: Path, dataset: Path
) -> dict[str, Any]:
    """Runs of each sort in turn until there were ``kills`` kills and every run is complete."""
    marks = Marks()
    undisturbed = {}
    for ranks in sorted({sort[-1] for sort in sorts}):
        undisturbed[ranks] = _new_run(scratch / f"undisturbed-{ranks}", dataset, marks, steps)
        undisturbed[ranks].start(ranks)
        _say(f"undisturbed run on {ranks} ranks: {_last_loss(undisturbed[ranks])!r}")
    fell_in: dict[str, Counter[str]] = {}
    runs, largest = 0, 0.0
    while sum(counter.total() for counter in fell_in.values()) < kills:
        sort = sorts[runs % len(sorts)]
        run = _new_run(scratch / f"run-{runs}", dataset, marks, steps)
        left = kills - sum(counter.total() for counter in fell_in.values())
        while not _start_once(run, sort, dice, armed=len(run.fell_in) < left):
            pass
        name = " or ".join(map(str, sort))
        fell_in.setdefault(name, Counter()).update(run.fell_in)
        difference = _compare(run, undisturbed[sort[-1]], exact=len(sort) == 1)
        largest = max(largest, difference)
        runs += 1
        _say(f"run {runs} on {name} ranks: {len(run.fell_in)} kills, {len(run.starts)} starts, differs by {difference}")
    return {
        "kills": sum(counter.total() for counter in fell_in.values()),
        "runs": runs,
        "largest_difference_of_loss": largest,
        "fell_in": {
            phase: {name: counter[phase] for name, counter in fell_in.items()}
            for phase in PHASES
            if any(counter[phase] for counter in fell_in.values())
        },
    }


def _start_once(run: Run, sort: Sequence[int], dice: random.Random, *, armed: bool) -> bool:
    ranks = dice.choice(sort)
    return run.start(ranks, Aim.draw(dice, ranks, run.marks) if armed else None)


def _compare(run: Run, undisturbed: Run, *, exact: bool) -> float:
    """The largest difference of a step's loss; ends the campaign if anything differs that must not."""
    ours, theirs = run.history(), undisturbed.history()
    same = ("batch_digest", "sequences", "lr", *(("loss", "grad_norm") if exact else ()))
    if ours.keys() != theirs.keys():
        sys.exit(f"{run.folder.root}: {len(ours)} steps, not {len(theirs)}")
    for step, event in theirs.items():
        for name in same:
            value, undisturbed_value = getattr(ours[step], name), getattr(event, name)
            if value != undisturbed_value:
                sys.exit(f"{run.folder.root}: {name} of step {step} is {value}, not {undisturbed_value}")
    steps = [abs(ours[step].loss - event.loss) for step, event in theirs.items()]
    largest: float = max(*steps, abs(_last_loss(run) - _last_loss(undisturbed)))
    if largest > (0 if exact else TOLERANCE):
        sys.exit(f"{run.folder.root}: the loss differs by {largest}")
    return largest


def _wrap_functions(marks: Marks, rank: int, reached: Callable[[str], None]) -> None:
    """Let this process mark what it does."""

    def wrap(owner: Any, name: str, phase: str, thread: int) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with marks.during(phase, rank, thread):
                reached(phase)
                return function(*args, **kwargs)

        setattr(owner, name, wrapped)

    wrap(PackedStream, "next_batch", DATA, LOOP)
    wrap(trainer.Trainer, "train_step", STEP, LOOP)
    wrap(saver.Saver, "save", STAGING, LOOP)
    wrap(checkpoint_writer, "write", BETWEEN, BACKGROUND)
    for name, phase in (
        ("_clear", CLEAR),
        ("save_tensors", TENSORS),
        ("describe", HASHES),
        ("commit", MANIFEST),
        ("commit_folder", RENAME),
    ):
        wrap(checkpoint_writer, name, phase, BACKGROUND)
    wrap(step_folder, "retain", RETENTION, BACKGROUND)


_entered: Counter[str] = Counter()  # of one rank: a forked process begins with an empty one


def _reached(pipe: int, aim: Aim | None, rank: int, phase: str) -> None:
    """Signal the campaign when a rank reaches the point to kill at."""
    _entered[phase] += 1
    if aim and rank == aim.rank and phase == aim.phase and _entered[phase] == aim.occurrence:
        os.write(pipe, b"!")


def _await(pipe: int, aim: Aim | None) -> bool:
    """Wait for the moment to kill; ``False`` if the job ended before."""
    if not os.read(pipe, 1) or aim is None:
        return False
    time.sleep(aim.delay_s)
    return True


def _prepare(scratch: Path) -> Path:
    """A dataset of made-up sentences, made in a process of its own: tokenizers start threads, which do not fork."""
    draw = random.Random(0)  # noqa: S311 - not for secrets
    words = ["the", "node", "reads", "a", "file", "and", "then", "writes", "another", "while", "some", "wait"]
    (scratch / "texts").mkdir()
    for number in range(400):
        text = " ".join(draw.choices(words, k=draw.randint(40, 120)))
        (scratch / "texts" / f"{number}.txt").write_text(text)
    flags = ["--output", str(scratch / "dataset"), "--shards", "12", "--vocab-size", "300"]
    pid = os.fork()
    if pid == 0:
        os._exit(podwright_train(["prepare", str(scratch / "texts"), *flags]))
    if os.waitpid(pid, 0)[1]:
        sys.exit("the dataset could not be prepared")
    return scratch / "dataset"


def _new_run(root: Path, dataset: Path, marks: Marks, steps: int) -> Run:
    root.mkdir()
    return Run(RunFolder(root), dataset, marks, steps)


def _last_loss(run: Run) -> float:
    return list(run.folder.events_of(ValidationEvent))[-1].loss


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
