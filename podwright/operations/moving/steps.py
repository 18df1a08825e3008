"""The steps of a move, in order; each can be run again and continues the work of an interrupted run.

A repeated step finds what its earlier run did: requests to AWS carry a token from the journal, for which AWS answers
with the resource that exists, and a submitted job is recorded under the number that it had on the old cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from podwright.aws_session import Session, deployer_session
from podwright.check.findings import KeyPath
from podwright.check.load import load
from podwright.config_file import with_file
from podwright.errors import OperationError
from podwright.operations.deployment import deploy
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.recovery import noted, recover
from podwright.operations.moving import objects
from podwright.operations.moving.backups import Carrier, Say
from podwright.operations.moving.controller import Controller
from podwright.operations.moving.journal import Journal, Place
from podwright.operations.moving.settings_text import edited
from podwright.output_file import place_of
from podwright.settings import names
from podwright.settings.root import Settings
from podwright_common.atomic_file import write_file

FOLDER = ".podwright-move"  # The shared file system's backups take it along.
POLL_S = 3.0


@dataclass(frozen=True)
class ClusterMove:
    """One move of a cluster, with a method per step.

    Args:
        journal: the finished steps, and the two ends of the move.
        profile: a name in the AWS configuration.
        folder: the folder with ``cdktf.json``.
        save_s: seconds that a running job may take to save, before it is requeued.
        leaves_jobs: go on without jobs that Slurm does not take.
        say: prints one line.
    """

    journal: Journal
    profile: str | None
    folder: Path
    save_s: float
    leaves_jobs: bool
    say: Say

    @cached_property
    def old_settings(self) -> Settings:
        """The settings of the old cluster."""
        return load(self.journal.old.file)

    @property
    def new_settings(self) -> Settings:
        """The settings of the new cluster, as the file has them now."""
        return load(self.journal.new.file)

    def session(self, place: Place) -> Session:
        """Return a session in a place's region."""
        return deployer_session(load(place.file), profile=self.profile)

    @cached_property
    def carrier(self) -> Carrier:
        """The maker of the backups."""
        return Carrier(self.journal, self.session(self.journal.old), self.session(self.journal.new), self.say)

    @property
    def shared(self) -> str:
        """The folder of this move's records on the controllers, which the last backup takes along."""
        return f"{self.old_settings.lustre.mount_path}/{FOLDER}/{self.journal.id}"

    @property
    def roots(self) -> list[str]:
        """The mount paths of the file systems that move."""
        openzfs = self.old_settings.openzfs
        return [self.old_settings.lustre.mount_path, *([openzfs.mount_path] if openzfs.source == "create" else [])]

    def controller(self, place: Place) -> Controller:
        """Return a place's controller."""
        return Controller.of(self.session(place), place)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def first_backup(self) -> None:
        """Back up the file systems while jobs run, so that the last backup is short."""
        self.journal.finish("first-backup", first_backups=self.carrier.carry("first"))

    def hold(self) -> None:
        """Start no job; let running ones save and queue again."""
        controller = self.controller(self.journal.old)
        self.journal.note(holding=True)  # Going back then has to reopen the partitions.
        last_states: object = None
        while True:
            job_states = controller.call("moved_jobs", "hold", self.shared, self.save_s)
            if not job_states["running"] and not job_states["unable"]:
                break
            if job_states != last_states:
                self._say_jobs("these jobs save and queue again", job_states["running"])
                self._say_jobs("Slurm may not requeue these; they end, or you cancel them", job_states["unable"])
                last_states = job_states
            time.sleep(POLL_S)
        waiting = controller.call("moved_jobs", "close", self.shared)["jobs"]
        self._say_jobs("wait for the new cluster", waiting)
        self.journal.finish("hold", jobs=waiting)

    def record(self) -> None:
        """Write people, accounts and every file's owner into the folder that moves along."""
        controller = self.controller(self.journal.old)
        people = controller.call("people", "record", self.shared)
        accounts = controller.call("accounting", "dump", self.shared)
        files = controller.call("files", "record", self.shared, *self.roots)
        self.say(f"recorded {len(people['people'])} people, {_accounts(accounts)}, {files['files']} files")
        for uid, of in files["owners"].items():
            self.say(f"  owner {uid}: {of['files']} files, {of['bytes']:,} bytes")
        self.journal.finish("record", people=people["people"], accounts=accounts, files=files)

    def last_backup(self) -> None:
        """Back up later changes, and name the backups in the new settings file."""
        backups = self.carrier.carry("last")
        file = self.journal.new.file
        values: dict[KeyPath, str] = {(section, "backup_id"): backup_id for section, backup_id in backups.items()}
        text = edited(file.read_text(encoding="utf-8"), values, file=file)
        write_file(place_of(file), text, mode=file.stat().st_mode & 0o777)
        self.journal.finish("last-backup", last_backups=backups)

    def foundation(self) -> None:
        """Deploy the new foundation; its file systems are restored from the last backups."""
        self.journal.note(deploying=True)  # Going back then has to destroy the new stacks.
        self._deploy("foundation")
        self.journal.finish("foundation")

    def bucket(self) -> None:
        """Copy the bucket's objects, but not podwright's own."""
        if {self.old_settings.bucket.source, self.new_settings.bucket.source} == {"create"}:
            old, new = self.session(self.journal.old), self.session(self.journal.new)
            clusters = self.journal.old.name, self.journal.new.name
            source, target = objects.bucket_of(old, clusters[0]), objects.bucket_of(new, clusters[1])
            result = objects.copy(old, new, source=source, target=target, clusters=clusters)
            self.say(
                f"{result.copied} objects copied to {target}, {result.existing} already existed; {result.size:,} bytes"
            )
        self.journal.finish("bucket")

    def cluster(self) -> None:
        """Deploy the new cluster: from here on its nodes cost money."""
        self._deploy("cluster")
        self.journal.finish("cluster")

    def accounts(self) -> None:
        """Load Slurm's accounts and history of jobs."""
        if self.journal.facts["accounts"]["accounting"]:
            loaded = self.controller(self.journal.new).call("accounting", "load", self.shared)
            self.say(f"Slurm has {loaded['jobs']} jobs in its history")
        self.journal.finish("accounts")

    def verify(self) -> None:
        """Compare people, files and accounts with the record.

        Raises:
            OperationError: something differs; all of it is named.
        """
        controller = self.controller(self.journal.new)
        differences = [f"people: {line}" for line in controller.call("people", "compare", self.shared)["differences"]]
        files = controller.call("files", "compare", self.shared, *self.roots)
        differences += [
            f"{count} files differ in {attribute}" for attribute, count in sorted(files["different"].items())
        ]
        differences += [f"  {line}" for line in files["examples"]]
        if self.journal.facts["accounts"]["accounting"]:
            differences += controller.call("accounting", "compare", self.shared)["differences"]
        if differences:
            raise OperationError(
                "\n".join([f"{self.journal.new.name} differs from {self.journal.old.name}:", *differences]),
                "repair it and run `podwright move` again, or go back: `podwright move --back`",
            )
        changed = f", {files['of_boots']} of them written anew by boots" if files["of_boots"] else ""
        self.say(f"people and accounts agree; so do {files['files']} files{changed} and {files['hashed']} hashes")
        self.journal.finish("verify", verified=files)

    def jobs(self) -> None:
        """Submit the jobs that waited, from their run folders.

        Raises:
            OperationError: Slurm does not take some; each has the reason.
        """
        result = self.controller(self.journal.new).call("moved_jobs", "submit", self.shared)
        for before, after in result["submitted"].items():
            self.say(f"job {before} continues as {after}")
        if result["refused"] and not self.leaves_jobs:
            raise OperationError(
                "\n".join(["Slurm did not accept these jobs:", *result["refused"]]),
                "repair the reason and run `podwright move` again, or leave them: --leave-jobs",
            )
        for line in result["refused"]:
            self.say(f"not submitted: job {line}")
        self.journal.finish("jobs", submitted=result["submitted"], left=result["refused"])

    def reopen(self) -> None:
        """Let the old cluster take and start jobs again."""
        result = self.controller(self.journal.old).call("moved_jobs", "reopen", self.shared)
        self.say(f"{self.journal.old.name} starts jobs again in {', '.join(result['partitions']) or 'no partition'}")

    def _say_jobs(self, text: str, jobs: list[str]) -> None:
        if jobs:
            self.say(f"jobs: {', '.join(jobs)}: {text}")

    def _deploy(self, part: str) -> None:
        """Deploy one stack of the new settings file."""
        kit = Kit(self.journal.new.file, self.folder)
        with kit.locked(with_file("move", self.journal.old.file)):
            kit.synthesize()
            follow = deploy.resource_lines(stacks(self.journal.new.name, folder=self.folder).values(), self.say)
            stack = names.foundation_stack if part == "foundation" else names.cluster_stack
            arguments = (stack(self.journal.new.name), deploy.SKIP_SYNTH, deploy.APPROVED, deploy.ALONE)
            recover(self.new_settings, self.folder, self.say)
            with noted(self.new_settings, self.folder):
                kit.run("deploy", *arguments, on_line=follow)


STEPS: Mapping[str, Callable[[ClusterMove], None]] = {
    "first-backup": ClusterMove.first_backup,
    "hold": ClusterMove.hold,
    "record": ClusterMove.record,
    "last-backup": ClusterMove.last_backup,
    "foundation": ClusterMove.foundation,
    "bucket": ClusterMove.bucket,
    "cluster": ClusterMove.cluster,
    "accounts": ClusterMove.accounts,
    "verify": ClusterMove.verify,
    "jobs": ClusterMove.jobs,
}
DESTROYED, BACK = "old-destroyed", "back"
NEEDS_PAUSE = "hold"  # Jobs wait from this step until the move ends.


def _accounts(accounts: Mapping[str, Any]) -> str:
    return f"{accounts['jobs']} jobs in the history" if accounts["accounting"] else "no accounting"
