"""Keep the newest state of a run in the memory of its hosts, so that a lost host costs a few steps.

``MemoryTier.save`` copies this rank's tensors into the host's memory and returns. A thread then writes them as an
ordinary checkpoint below ``memory_checkpoint_dir``, with the same threads of the other ranks, and sends the files to
the rank of the same place on the next host, its partner, over a process group of their own. When every rank has its
files in both places, all know the hashes of all files, and each host gives the checkpoint its name. Two are there at
most: the newest complete one and the one that is written.

``newest`` asks all hosts what they have and returns the newest checkpoint of which each file is intact on some host,
whatever ranks and layout the job has now; ``restore`` reads from this host or from another over ``memory_server.py``.
A checkpoint that is not whole is never used, and its failure ends no run: what failed is one warning.

Only the files outlive the ranks. The file ``.memory-id`` among the checkpoints on disk ties them to the run
(``memory_place.py``).
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner

from podwright_training.checkpoint import (
    checkpoint_reader,
    checkpoint_writer,
    random_state,
    step_folder,
    trainer_state,
    weights_check,
)
from podwright_training.checkpoint.collective_io import CheckpointError, CollectiveIO, RuinedCheckpointError
from podwright_training.checkpoint.index import INDEX
from podwright_training.checkpoint.manifest import TRAINER, describe, parse_manifest
from podwright_training.checkpoint.memory_folder import HostPart, MemoryFolder
from podwright_training.checkpoint.memory_reader import MemoryReader, RemoteFiles
from podwright_training.checkpoint.memory_server import Address, MemoryServer
from podwright_training.checkpoint.saving_thread import SavingThread
from podwright_training.checkpoint.snapshot import Snapshot
from podwright_training.checkpoint.stager import Stager
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.sections.checkpoint_options import AUTO
from podwright_training.config.train_config import TrainConfig
from podwright_training.failures import best_interval_steps, seconds_between_failures
from podwright_training.folder_listing import paths_in
from podwright_training.memory_place import run_id
from podwright_training.optim import Optimizers
from podwright_training.ports import own_address
from podwright_training.ranks import Hosts
from podwright_training.run_folder import RunFolder
from podwright_training.run_secret import run_secret

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 30  # A file is sent piece by piece.
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A complete checkpoint in memory.

    Attributes:
        step: Its step.
        manifest: Text of its manifest.
        places: The hosts that have each file, by its name.
    """

    step: int
    manifest: str
    places: dict[str, list[str]]


class MemoryTier:
    """Write a run's checkpoints in memory, one at a time, and read them; all ranks call every method but ``busy``.

    Args:
        config: Where to write, and how often.
        hosts: The hosts of all ranks.
        merge: Joins the positions in the data of all ranks.

    Attributes:
        group: Process group of the saving threads.
        newest_step: Step of the newest complete checkpoint that this start wrote or read.
        paused_s: Seconds that training waited for the last save.
    """

    def __init__(
        self,
        config: TrainConfig,
        hosts: Hosts,
        *,
        merge: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
        silent: Callable[[], str] = lambda: "",
    ) -> None:
        self._config = config
        self._hosts = hosts
        self._merge = merge
        self.group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._collective = CollectiveIO(Path(config.memory_checkpoint_dir), self.group)
        run = self._collective.first_rank(lambda: run_id(config.checkpoints))
        self.folder = MemoryFolder(Path(config.memory_checkpoint_dir), run=run, host=hosts.host)
        self._as_leader(self.folder.open)
        self._thread = SavingThread("checkpoint in memory", patience_s=config.step_timeout_s, silent=silent)
        self._stager = Stager()
        self._planner = _planner()
        self._secret = run_secret(RunFolder(Path(config.run_dir))) if hosts.are_several else b""
        self._server: MemoryServer | None = None
        self._addresses: dict[str, Address] = {}
        self._steps = 1 if config.memory_checkpoint_freq == AUTO else int(config.memory_checkpoint_freq or 1)
        self._last: tuple[int, float] | None = None  # step and time of the last save
        self._sizes: deque[float] = deque(maxlen=weights_check.HISTORY)  # rms of the weights in good checkpoints
        self.ruined: RuinedCheckpointError | None = None
        self._warned = self._broken = False
        self.newest_step: int | None = None
        self.paused_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Free the memory, unless an error ends training: the next start needs the checkpoints then."""
        self._thread.end(error)
        self._stager.close()
        self._close_server()
        if kind is None and self._hosts.is_leader:
            self.folder.remove()

    @property
    def busy(self) -> bool:
        """Return whether this rank would be late for a save; none may begin then on any rank.

        With a frequency that was given, ``save`` waits instead: that many steps are what a lost host may cost.
        """
        return self._broken or (self._thread.is_busy and self._config.memory_checkpoint_freq == AUTO)

    def due(self, step: int) -> bool:
        """Return whether to save after this step, if no rank is busy."""
        return self._last is None or step - self._last[0] >= self._steps

    def save(self, state: TrainerState, *, weights: Mapping[str, Tensor], optimizers: Optimizers) -> None:
        """Begin to write a checkpoint, after the one before; ``state`` has this rank's own position in the data."""
        begin = perf_counter()
        self.wait()
        snapshot = Snapshot.of(state, weights=weights, optimizers=optimizers)
        snapshot = replace(snapshot, tensors=self._stager.stage(snapshot.tensors))
        step_s = (begin - self._last[1]) / (state.step - self._last[0]) if self._last else 0.0
        self._last = state.step, perf_counter()
        self.paused_s = perf_counter() - begin
        self._thread.start(self._write, snapshot, self.paused_s, step_s)

    def is_late(self, step: int) -> bool:
        """Return whether a host lost right after ``step`` would cost more steps than the given frequency."""
        has_fixed_frequency = self._config.memory_checkpoint_freq != AUTO
        return bool(self._thread.is_busy and has_fixed_frequency and self._last and step - self._last[0] >= self._steps)

    def wait(self) -> None:
        """Wait until this rank does not save."""
        self._thread.wait()

    def newest(self, *, at_least: int) -> MemoryCheckpoint | None:
        """Return the newest checkpoint that is complete over all hosts, of this step or later; log why others are not.

        Every file was hashed.
        """
        parts = self._gather_parts()
        for step, manifest in _candidates(parts):
            if step < at_least:
                break
            try:
                files = parse_manifest(manifest)
            except ValueError:
                continue  # another host's may be intact
            places = self._places(step, files)
            missing = sorted(name for name in files if name not in places)
            if not missing:
                return MemoryCheckpoint(step, manifest, places)
            if dist.get_rank() == 0:
                logger.warning(_lost(step, missing, files))
        return None

    def restore(
        self, checkpoint: MemoryCheckpoint, *, weights: Mapping[str, Tensor], optimizers: Optimizers
    ) -> TrainerState:
        """Load everything from a checkpoint that ``newest`` returned, on all ranks; return its state.

        Raises:
            CheckpointError: A host that has a file went away meanwhile, or it is of another model; on all ranks.
        """
        files = parse_manifest(checkpoint.manifest)
        path = step_folder.folders(self.folder.root, checkpoint.step)[0]
        self._as_leader(lambda: self.folder.name(checkpoint.step, checkpoint.manifest))
        with RemoteFiles(self._remote(checkpoint), self._secret) as remote:
            self._as_leader(lambda: self._copy_small_files(path, files, remote))
            checkpoint_reader.load_by(MemoryReader(path, files, remote), path, weights=weights, optimizers=optimizers)
        random_state.load_rng(path)
        self._close_server()  # every rank has read
        self.newest_step = checkpoint.step
        return trainer_state.read_state(path)

    def keep(self, step: int | None) -> None:
        """Forget every checkpoint but that of ``step``: training continues from there."""
        self.wait()
        self._close_server()
        self._as_leader(lambda: self.folder.keep([] if step is None else [step]))
        self.ruined = None
        self.newest_step, self._last = step, None  # steps may count from an earlier one: the next is saved

    def _write(self, snapshot: Snapshot, paused_s: float, step_s: float) -> None:
        step, partial = snapshot.state.step, step_folder.folders(self.folder.root, snapshot.state.step)[1]
        try:
            self._write_together(snapshot, paused_s, step_s)
            self.newest_step, self._warned = step, False
        except RuinedCheckpointError as error:
            self._as_leader(lambda: _remove(partial))
            self.ruined = self.ruined or error
        except CheckpointError as error:
            self._as_leader(lambda: _remove(partial))
            if dist.get_rank() == 0 and not self._warned:
                logger.warning("no checkpoint in memory: %s; training continues, the next one is tried", error)
            self._warned = True
        except RuntimeError as error:  # a rank is gone: training ends too, or recovers with new ranks
            self._broken = True
            logger.warning("checkpoints in memory are off from now on: %s", str(error).splitlines()[0])

    def _write_together(self, snapshot: Snapshot, paused_s: float, step_s: float) -> None:
        step, collective = snapshot.state.step, self._collective
        size = 2 * self._hosts.ranks_here * _size(snapshot)  # The partners' copies take as much again.
        rank_values = (snapshot.state.data, paused_s, step_s)
        final, partial = step_folder.folders(self.folder.root, step)
        gathered = collective.all_ranks(lambda: self._begin(step, size, rank_values))
        self._choose_frequency([values[1:] for values in gathered])
        checkpoint_writer.save_tensors(partial, snapshot.tensors, self.group, durable=False, planner=self._planner())
        state = replace(snapshot.state, data=self._merge([values[0] for values in gathered]))
        finished = collective.all_ranks(
            lambda: (self._finish_own(partial, snapshot, state), weights_check.measure(snapshot.tensors))
        )
        described, parts = [result[0] for result in finished], [result[1] for result in finished]
        if bad := weights_check.complaint(parts, self._sizes):
            raise RuinedCheckpointError(f"the weights of step {step} are of no use: {bad}")
        self._exchange(partial, described)
        files = {
            name: {**entry, "host": self._hosts.names[origin]}
            for origin, part in enumerate(described)
            for name, entry in part.items()
        }
        collective.all_ranks(lambda: None)  # every rank has its files in both places
        rms = weights_check.rms(parts)
        self._as_leader(lambda: checkpoint_writer.commit(partial, final, files, weights={"rms": rms}))
        self._sizes.append(rms)

    def _begin(self, step: int, size: int, rank_values: tuple[Any, float, float]) -> tuple[Any, float, float]:
        if self._hosts.is_leader:
            self.folder.begin(step, size=size)
        return rank_values

    def _finish_own(self, partial: Path, snapshot: Snapshot, state: TrainerState) -> dict[str, dict[str, Any]]:
        """Write everything but tensors; return this rank's files."""
        random_state.save_rng(random_state.rng_file(partial), snapshot.rng)
        names = [random_state.rng_file(partial), *paths_in(partial, f"__{dist.get_rank()}_*")]
        if dist.get_rank() == 0:
            trainer_state.write_state(partial, state)
            names += [partial / TRAINER, partial / INDEX]
        return describe(names)

    def _exchange(self, partial: Path, described: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Send this rank's files to its partner, and receive the files of the ranks that have this partner."""
        rank = dist.get_rank()
        partner = self._hosts.partner_of(rank)
        received = [
            (origin, partial / name, entry["bytes"])
            for origin, part in enumerate(described)
            if self._hosts.partner_of(origin) == rank
            for name, entry in part.items()
        ]
        self._collective.all_ranks(lambda: _reserve({path: size for _, path, size in received}))
        pending = [
            dist.irecv(piece, origin, group=self.group)
            for origin, path, size in received
            for piece in _pieces(path, size)
        ]
        if partner is not None:
            outgoing_files = ((partial / name, entry["bytes"]) for name, entry in described[rank].items())
            pending += [
                dist.isend(piece, partner, group=self.group)
                for path, size in outgoing_files
                for piece in _pieces(path, size)
            ]
        for work in pending:
            if work is not None:
                work.wait()

    def _choose_frequency(self, times: Iterable[tuple[float, float]]) -> None:
        """Choose the number of steps between two saves from the slowest rank's times; the same on all ranks."""
        paused_s, step_s = map(max, zip(*times, strict=True))
        if self._config.memory_checkpoint_freq == AUTO and step_s:
            between_s = seconds_between_failures(dist.get_world_size())
            self._steps = best_interval_steps(paused_s, between_s, step_s=step_s)

    def _as_leader(self, action: Callable[[], object]) -> None:
        """Run an action on one rank of each host."""
        self._collective.all_ranks(lambda: action() and None if self._hosts.is_leader else None)

    def _gather_parts(self) -> list[HostPart]:
        """Return the hosts' checkpoints, and serve their files to the run's other hosts."""
        own_parts = self.folder.parts() if self._hosts.is_leader else []
        parts_by_rank = self._collective.all_ranks(lambda: own_parts)
        self._close_server()
        if self._hosts.is_leader and self._hosts.are_several:
            self._server = MemoryServer(self.folder.root, self._secret)
        port = self._server.port if self._server else 0
        listening = self._collective.all_ranks(lambda: (self._hosts.host, own_address(), port))
        self._addresses = {host: Address(address, port) for host, address, port in listening if port}
        return [part for parts in parts_by_rank for part in parts]

    def _places(self, step: int, files: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
        """Return the hosts on which each file is intact; the ranks of a host hash a share of its files each."""
        path = self.folder.path_of(step)
        share = [name for name in sorted(files) if (path / name).is_file()][self._hosts.place :: self._hosts.ranks_here]

        def intact() -> list[str]:
            descriptions = describe(path / name for name in share)
            return [name for name, entry in descriptions.items() if entry.items() <= files[name].items()]

        places: dict[str, list[str]] = {}
        for host, names in self._collective.all_ranks(lambda: (self._hosts.host, intact())):
            for name in names:
                places.setdefault(name, []).append(host)
        return places

    def _remote(self, checkpoint: MemoryCheckpoint) -> dict[str, list[tuple[str, Address]]]:
        """Return where to read the files that this host does not have."""
        name = step_folder.folders(Path(), checkpoint.step)[0].name
        return {
            file: [(f"{name}/{file}", self._addresses[host]) for host in hosts]
            for file, hosts in checkpoint.places.items()
            if self._hosts.host not in hosts
        }

    def _copy_small_files(self, path: Path, files: Mapping[str, Any], remote: RemoteFiles) -> None:
        """Copy the files that every host needs completely."""
        for name in (INDEX, TRAINER, *(f"rng-{rank:05d}.pt" for rank in self._hosts.local_ranks)):
            if name in remote:
                (path / name).write_bytes(remote.read(name, 0, files[name]["bytes"]))

    def _close_server(self) -> None:
        if self._server:
            self._server.close()
            self._server = None


def _planner() -> Callable[[], SavePlanner]:
    """Return a maker of planners that plan once, as long as the shards stay the same."""

    class Planner(DefaultSavePlanner):
        """A class of its own, by whose name PyTorch finds the plan again."""

    Planner.__name__ = f"MemoryPlanner{secrets.token_hex(4)}"  # the key of PyTorch's cache
    return lambda: Planner(enable_plan_caching=True)


def _candidates(parts: Iterable[HostPart]) -> list[tuple[int, str]]:
    """Return step and manifest of all checkpoints that some host has named, the newest first."""
    return sorted({(part.step, part.manifest) for part in parts if part.manifest}, reverse=True)


def _lost(step: int, missing: Sequence[str], files: Mapping[str, Mapping[str, Any]]) -> str:
    hosts = sorted({str(files[name].get("host")) for name in missing})
    return (
        f"the checkpoint of step {step} in memory is incomplete: {len(missing)} of its {len(files)} files, of "
        f"{', '.join(hosts)}, are intact neither there nor on the partner"
    )


def _size(snapshot: Snapshot) -> int:
    tensors = (tensor for part in snapshot.tensors.values() for tensor in part.values())
    return sum(_local(tensor).nbytes for tensor in tensors)


def _local(tensor: Tensor) -> Tensor:
    return cast("Tensor", tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def _reserve(sizes: Mapping[Path, int]) -> None:
    """Make files of these sizes; a full file system is an error here, and would end the process at the first write."""
    for path, size in sizes.items():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def _pieces(path: Path, size: int) -> Sequence[Tensor]:
    """Return a file in memory as tensors, which share its bytes."""
    content = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
    return torch.split(content, PIECE_BYTES)


def _remove(path: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(path)
