"""Run ``podwright move``: begin a move, continue it, go back, or destroy the old cluster."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright.aws_session import deployer_session
from podwright.check.document import Document
from podwright.check.load import load
from podwright.config_file import with_file
from podwright.errors import ArgumentError
from podwright.json_document import JsonObject
from podwright.operations.account.inventory import inventory
from podwright.operations.deployment import destroy
from podwright.operations.deployment.deploy import speaker, use_profile
from podwright.operations.deployment.supervised_process import announcing
from podwright.operations.deployment.teardown import print_inventory
from podwright.operations.moving import backups, settings_text
from podwright.operations.moving import journal as journals
from podwright.operations.moving.destination import Destination, default_name, new_file
from podwright.operations.moving.journal import Journal, JournalDocument, Place
from podwright.operations.moving.preview import MovePreview, MovePreviewDocument
from podwright.operations.moving.steps import BACK, DESTROYED, NEEDS_PAUSE, STEPS, ClusterMove
from podwright.operations.output import confirm, print_document
from podwright.output_file import place_of
from podwright_common.atomic_file import write_file
from podwright_common.exit_status import FAILED, OK

DESTINATION = ("zone", "region", "training_plan", "name", "set")  # options of a new move


@dataclass(frozen=True, kw_only=True)
class Move(JsonObject):
    """The document of `podwright move --json`."""

    schema: Literal["podwright.move/1"] = "podwright.move/1"
    preview: MovePreviewDocument | None
    """null where the move had begun."""
    journal: JournalDocument | None
    """null where no move has begun."""


def run(options: argparse.Namespace) -> int:
    """Begin a move, or continue the one that the journal beside the file records.

    Raises:
        PodwrightError: the file or the destination is wrong, a step fails, or AWS refuses.
    """
    use_profile(options.profile)
    path = journals.journal_path(options.file)
    if options.status:
        return _status(journals.Journal.read(path), options)
    with journals.alone(options.file):
        return _run_alone(options, path)


def _run_alone(options: argparse.Namespace, path: Path) -> int:
    journal = _unfinished(path)
    if journal is None:
        if options.back or options.destroy_old:
            raise ArgumentError(f"no move of {options.file} is under way", "begin one: podwright move --zone ID")
        return _begin(options, path)
    if options.dry_run:
        return _status(journal, options)
    move = _move(journal, options)
    flag = " --back" if options.back else " --destroy-old" if options.destroy_old else ""
    with announcing(with_file(f"move{flag}", options.file)):
        if options.back:
            return _back(move, options)
        if options.destroy_old:
            return _destroy_old(move, options)
        _refuse_another_destination(journal, options)
        return _continue(move, options)


def _move(journal: Journal, options: argparse.Namespace) -> ClusterMove:
    say = speaker(quiet=options.json)
    return ClusterMove(journal, options.profile, Path.cwd(), options.save_s, options.leave_jobs, say)


def _refuse_another_destination(journal: Journal, options: argparse.Namespace) -> None:
    """Refuse a destination that is not the one of the move under way.

    Raises:
        ArgumentError: options differ from those that it began with; all of them are in it.
    """
    begun = {**journal.facts, "region": journal.new.region, "name": journal.new.name}
    options_by_name = {key: getattr(options, key) for key in DESTINATION}
    different_options = [
        f"--{key.replace('_', '-')}" for key, value in options_by_name.items() if value and value != begun.get(key)
    ]
    if different_options:
        message = f"a move to {journal.new.name} is under way, and it began with another {', '.join(different_options)}"
        raise ArgumentError(message, "finish it, or `podwright move --back`")


def _begin(options: argparse.Namespace, path: Path) -> int:
    """Show changes, data and prices, ask, and write journal and new settings file."""
    if not options.zone:
        raise ArgumentError("no --zone", "name the zone of your new capacity: podwright move --zone usw2-az2")
    settings, source = load(options.file), Document.read(options.file)
    name = options.name or default_name(settings, options.zone)
    values = {settings_text.key_path(key): value for key, value in map(_assignment, options.set)}
    place = Destination(name, options.zone, options.region or "", options.training_plan or "", values)
    file = options.file.with_name(f"{name}.yaml")
    new = new_file(source, settings, place, file=file)
    if file.exists() and file.read_text(encoding="utf-8") != new.text:  # equal: we were killed before the journal
        raise ArgumentError(f"{file} exists already", "move it away, or choose another --name")
    session = deployer_session(settings, profile=options.profile)
    preview = MovePreview.of(settings, new, backups.file_systems(session, settings.name))
    ends = Place(settings.name, settings.region, options.file), Place(name, new.settings.region, file)
    begun = {"zone": options.zone, "training_plan": options.training_plan, "set": options.set}
    move = _move(Journal(path, *ends, facts=begun), options)
    for line in preview.lines():
        move.say(line)
    if options.dry_run:
        if options.json:
            print_document(Move(preview=preview.document(), journal=None))
        return OK
    if not confirm(f"Move {settings.name} to {name}?", yes=options.yes):
        return FAILED
    _archive_finished(path)
    write_file(place_of(file), new.text)
    move.journal.write()
    with announcing(with_file("move", options.file)):
        return _continue(move, options, preview)


def _continue(move: ClusterMove, options: argparse.Namespace, preview: MovePreview | None = None) -> int:
    """Run the steps that are left, up to the wanted one."""
    journal = move.journal
    for name, step in STEPS.items():
        if name not in journal.done:
            question = f"Let the jobs of {journal.old.name} save and wait for {journal.new.name}?"
            if name == NEEDS_PAUSE and not confirm(question, yes=options.yes):
                return FAILED
            move.say(f"{name}: {(step.__doc__ or '').splitlines()[0]}")
            step(move)
        if name == options.until:
            break
    if options.json:
        print_document(Move(preview=preview.document() if preview else None, journal=journal.document()))
        return OK
    remaining_steps = [name for name in STEPS if name not in journal.done]
    if remaining_steps:
        print(f"next: `podwright move` continues with {remaining_steps[0]}")
        return OK
    _print_remaining_costs(move)
    return OK


def _print_remaining_costs(move: ClusterMove) -> None:
    """Print the resources of the old cluster that still cost money, and the command that deletes them."""
    journal = move.journal
    print(f"moved: {journal.new.name} runs with {journal.new.file}. Remaining costs of {journal.old.name}:")
    print_inventory(inventory(move.session(journal.old), journal.old.name))
    print("next:\n  podwright move --destroy-old      # or --back")


def _back(move: ClusterMove, options: argparse.Namespace) -> int:
    """Go back: destroy the new cluster, and let the old one start its jobs again."""
    journal = move.journal
    if journal.facts.get("destroying"):
        raise ArgumentError(
            f"{journal.old.name} is being destroyed", "there is no way back: podwright move --destroy-old"
        )
    lost = f" What was written at {journal.new.name} is lost." if "jobs" in journal.done else ""
    if not confirm(f"Go back to {journal.old.name} and destroy {journal.new.name}?{lost}", yes=options.yes):
        return FAILED
    if journal.facts.get("deploying"):
        _destroy(journal.new.file, options, command=with_file("move --back", options.file))
    if journal.facts.get("holding"):
        move.reopen()
    deleted = move.carrier.delete()
    move.say(f"deleted {deleted} backups")
    journal.finish(BACK)
    journal.new.file.unlink(missing_ok=True)  # last: a killed --back that is repeated needs it
    if options.json:
        print_document(Move(preview=None, journal=journal.document()))
    return OK


def _destroy_old(move: ClusterMove, options: argparse.Namespace) -> int:
    """Destroy the old cluster with its foundation, and the backups of the move."""
    journal = move.journal
    remaining_steps = [name for name in STEPS if name not in journal.done]
    if remaining_steps:
        raise ArgumentError(f"the move is not done: {', '.join(remaining_steps)}", "finish it first: podwright move")
    question = f"Destroy {journal.old.name} in {journal.old.region} with all its files? There is no way back."
    if not confirm(question, yes=options.yes):
        return FAILED
    journal.note(destroying=True)
    _destroy(journal.old.file, options, command=with_file("move --destroy-old", options.file))
    move.say(f"deleted {move.carrier.delete()} backups of the move")
    journal.finish(DESTROYED)
    if options.json:
        print_document(Move(preview=None, journal=journal.document()))
        return OK
    print_inventory(inventory(move.session(journal.old), journal.old.name))
    print(f"{journal.new.file} has the settings now: mv {journal.new.file} {journal.old.file}")
    return OK


def _destroy(file: Path, options: argparse.Namespace, *, command: str) -> None:
    destroy_options = argparse.Namespace(
        file=file,
        only=None,
        profile=options.profile,
        yes=True,
        json=False,
        empty_bucket=options.empty_bucket,
        delete_file_systems=True,  # The user was asked: the other cluster has the files, or they are given up.
    )
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        destroy.destroy_stacks(destroy_options, command=command)


def _status(journal: Journal | None, options: argparse.Namespace) -> int:
    if options.json:
        print_document(Move(preview=None, journal=journal.document() if journal else None))
        return OK
    if journal is None:
        print(f"no move of {options.file}")
        return OK
    print(f"{journal.old.name} ({journal.old.region}) -> {journal.new.name} ({journal.new.region}), {journal.path}")
    for name in (*STEPS, *(end for end in (BACK, DESTROYED) if end in journal.done)):
        print(f"  {journal.done.get(name, '-'):<26}{name}")
    return OK


def _unfinished(path: Path) -> Journal | None:
    """Return the journal of a move that is under way."""
    journal = Journal.read(path)
    return None if journal is None or _is_finished(journal) else journal


def _archive_finished(path: Path) -> None:
    """Keep the journal of an earlier move under its id."""
    journal = Journal.read(path)
    if journal is not None and _is_finished(journal):
        path.rename(path.with_name(f"{path.stem}-{journal.id}.json"))


def _is_finished(journal: Journal) -> bool:
    return bool({BACK, DESTROYED} & journal.done.keys())


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentError(f"--set {text}: need KEY=VALUE", "such as --set network.vpc_id=vpc-0123456789abcdef0")
    return key, value
