"""``podwright move``: take a cluster, its files, people, accounts and jobs to another zone or region."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from podwright.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG, config_path
from podwright.operations.errors import ArgumentError
from podwright.operations.target import add_examples

if TYPE_CHECKING:
    from podwright.operations.moving.journal import Journal
    from podwright.operations.moving.preview import Preview
    from podwright.operations.moving.steps import Move

OK, FAILED = 0, 1
SCHEMA = "podwright.move/1"
# In the order of podwright.operations.moving.steps; --help need not load it.
STEP_NAMES = (
    *("first-backup", "hold", "record", "last-backup", "foundation", "bucket", "cluster", "accounts", "verify", "jobs"),
)
SAVE_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the file, the destination, and how far to go."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=config_path(),
        metavar="FILE",
        help=f"settings of the old cluster; default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG}",
    )
    place = parser.add_argument_group("destination, for a new move")
    place.add_argument("--zone", metavar="ID", help="id of the new Availability Zone, such as usw2-az2")
    place.add_argument("--region", help="default: the old cluster's")
    place.add_argument("--training-plan", metavar="ARN", help="of the groups that have one, else of all compute groups")
    place.add_argument("--name", help="of the new cluster; default: the old one's with the zone")
    place.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another value of the new file; may be repeated"
    )
    how = parser.add_argument_group("how far")
    how.add_argument("--dry-run", action="store_true", help="show changes, data and prices, and end")
    how.add_argument("--until", choices=STEP_NAMES, metavar="STEP", help=f"end after a step: {', '.join(STEP_NAMES)}")
    how.add_argument("--save-s", type=float, default=SAVE_S, metavar="S", help="jobs may take to save; default: 900")
    how.add_argument("--leave-jobs", action="store_true", help="go on without jobs that Slurm does not take there")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show what is done, and end")
    what.add_argument("--back", action="store_true", help="destroy what is new, and start the old cluster's jobs again")
    what.add_argument("--destroy-old", action="store_true", help="destroy the old cluster, its files and the backups")
    parser.add_argument("--empty-bucket", action="store_true", help="delete all objects of a bucket that is destroyed")
    parser.add_argument("--profile", help="name in your AWS configuration; default: AWS_PROFILE")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_examples(
        parser,
        "podwright move --zone usw2-az2 --dry-run",
        "podwright move --zone use1-az6 --region us-east-1 --training-plan ARN --until first-backup",
        "podwright move --destroy-old",
    )


def run(options: argparse.Namespace) -> int:
    """Begin a move, or go on with the one that the journal beside the file has.

    Raises:
        PodwrightError: the file or the destination is wrong, a step fails, or AWS refuses.
    """
    from podwright.operations.deploy import speaker, use_profile  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.moving import journal as journals  # noqa: PLC0415
    from podwright.operations.moving.steps import Move  # noqa: PLC0415

    use_profile(options.profile)
    path = journals.journal_path(options.file)
    if options.status:
        return _status(journals.Journal.read(path), options)
    with journals.alone(options.file):
        journal = _unfinished(path)
        if journal is None:
            if options.back or options.destroy_old:
                raise ArgumentError(f"no move of {options.file} is under way", "begin one: podwright move --zone ID")
            return _begin(options, path)
        move = Move(
            journal, options.profile, Path.cwd(), options.save_s, options.leave_jobs, speaker(quiet=options.json)
        )
        if options.back:
            return _back(move, options)
        if options.destroy_old:
            return _destroy_old(move, options)
        if options.zone and options.zone != journal.facts.get("zone"):
            raise ArgumentError(f"a move to {journal.new.name} is under way", "finish it, or `podwright move --back`")
        return _go_on(move, options)


def _begin(options: argparse.Namespace, path: Path) -> int:
    """Look at everything, say it, ask, and write journal and new settings file."""
    from podwright.check.document import Document  # noqa: PLC0415 — as STEP_NAMES
    from podwright.check.load import load  # noqa: PLC0415
    from podwright.operations.deploy import speaker  # noqa: PLC0415
    from podwright.operations.moving import backups, destination, journal, preview, settings_text, steps  # noqa: PLC0415
    from podwright.operations.output import confirm, print_json  # noqa: PLC0415
    from podwright.operations.session import Session  # noqa: PLC0415
    from podwright_bootstrap.host.shell import write_file  # noqa: PLC0415

    if not options.zone:
        raise ArgumentError("no --zone", "name the zone of your new capacity: podwright move --zone usw2-az2")
    settings, source = load(options.file), Document.read(options.file)
    name = options.name or destination.default_name(settings, options.zone)
    values = {settings_text.key_path(key): value for key, value in map(_assignment, options.set)}
    place = destination.Destination(name, options.zone, options.region or "", options.training_plan or "", values)
    file = options.file.with_name(f"{name}.yaml")
    new = destination.new_file(source, settings, place, file=file)
    if file.exists() and file.read_text(encoding="utf-8") != new.text:  # equal: we were killed before the journal
        raise ArgumentError(f"{file} is there already", "move it away, or choose another --name")
    session = Session(region=settings.region, profile=options.profile)
    found = preview.Preview.of(settings, new, backups.file_systems(session, settings.name))
    say = speaker(quiet=options.json)
    for line in found.lines():
        say(line)
    if options.dry_run:
        if options.json:
            print_json(SCHEMA, {"preview": found.to_dict(), "journal": None})
        return OK
    if not confirm(f"Move {settings.name} to {name}?", yes=options.yes):
        return FAILED
    write_file(file, new.text)
    old_place = journal.Place(settings.name, settings.region, options.file)
    new_place = journal.Place(name, new.settings.region, file)
    made = journal.Journal(path, old_place, new_place, facts={"zone": options.zone})
    made.write()
    return _go_on(
        steps.Move(made, options.profile, Path.cwd(), options.save_s, options.leave_jobs, say), options, found
    )


def _go_on(move: Move, options: argparse.Namespace, found: Preview | None = None) -> int:
    """Run the steps that are left, up to the wanted one."""
    from podwright.operations.moving.steps import NEEDS_PAUSE, STEPS  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.output import confirm, print_json  # noqa: PLC0415

    journal = move.journal
    for name, step in STEPS.items():
        if name not in journal.done:
            question = f"Let the jobs of {journal.old.name} save and wait for {journal.new.name}?"
            if name == NEEDS_PAUSE and not confirm(question, yes=options.yes):
                return FAILED
            move.say(f"{name}: {_meaning(name)}")
            step(move)
        if name == options.until:
            break
    if options.json:
        print_json(SCHEMA, {"preview": found.to_dict() if found else None, "journal": journal.to_dict()})
        return OK
    left = [name for name in STEPS if name not in journal.done]
    if left:
        print(f"next: `podwright move` goes on with {left[0]}")
        return OK
    _say_what_is_left(move)
    return OK


def _say_what_is_left(move: Move) -> None:
    """Say what the old place still costs, and what ends it."""
    from podwright.operations.inventory import inventory  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.teardown import print_inventory  # noqa: PLC0415

    journal = move.journal
    print(f"moved: {journal.new.name} runs with {journal.new.file}. What {journal.old.name} still costs:")
    print_inventory(inventory(move.session(journal.old), journal.old.name))
    print("next:\n  podwright move --destroy-old      # or --back")


def _back(move: Move, options: argparse.Namespace) -> int:
    """Go back: the new cluster goes, the old one starts its jobs again."""
    from podwright.operations.moving.steps import BACK  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.output import confirm, print_json  # noqa: PLC0415

    journal = move.journal
    if journal.facts.get("destroying"):
        raise ArgumentError(
            f"{journal.old.name} is being destroyed", "there is no way back: podwright move --destroy-old"
        )
    lost = f" What was written at {journal.new.name} is lost." if "jobs" in journal.done else ""
    if not confirm(f"Go back to {journal.old.name} and destroy {journal.new.name}?{lost}", yes=options.yes):
        return FAILED
    if journal.facts.get("deploying"):
        _destroy(journal.new.file, options)
    if journal.facts.get("holding"):
        move.reopen()
    deleted = move.carrier.delete()
    move.say(f"deleted {deleted} backups")
    journal.new.file.unlink(missing_ok=True)
    journal.finish(BACK)
    if options.json:
        print_json(SCHEMA, {"preview": None, "journal": journal.to_dict()})
    return OK


def _destroy_old(move: Move, options: argparse.Namespace) -> int:
    """Destroy the old cluster with its foundation, and the backups of the move."""
    from podwright.operations.inventory import inventory  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.moving.steps import DESTROYED, STEPS  # noqa: PLC0415
    from podwright.operations.output import confirm, print_json  # noqa: PLC0415
    from podwright.operations.teardown import print_inventory  # noqa: PLC0415

    journal = move.journal
    left = [name for name in STEPS if name not in journal.done]
    if left:
        raise ArgumentError(f"the move is not done: {', '.join(left)}", "finish it first: podwright move")
    question = f"Destroy {journal.old.name} in {journal.old.region} with all its files? There is no way back."
    if not confirm(question, yes=options.yes):
        return FAILED
    journal.note(destroying=True)
    _destroy(journal.old.file, options)
    move.say(f"deleted {move.carrier.delete()} backups of the move")
    journal.finish(DESTROYED)
    if options.json:
        print_json(SCHEMA, {"preview": None, "journal": journal.to_dict()})
        return OK
    print_inventory(inventory(move.session(journal.old), journal.old.name))
    print(f"{journal.new.file} has the settings now: mv {journal.new.file} {journal.old.file}")
    return OK


def _destroy(file: Path, options: argparse.Namespace) -> None:
    from podwright.operations import destroy  # noqa: PLC0415 — as STEP_NAMES

    wanted = argparse.Namespace(
        file=file, only=None, profile=options.profile, yes=True, json=False, empty_bucket=options.empty_bucket
    )
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        destroy.run(wanted)


def _status(journal: Journal | None, options: argparse.Namespace) -> int:
    from podwright.operations.moving.steps import BACK, DESTROYED  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.output import print_json  # noqa: PLC0415

    if options.json:
        print_json(SCHEMA, {"preview": None, "journal": journal.to_dict() if journal else None})
        return OK
    if journal is None:
        print(f"no move of {options.file}")
        return OK
    print(f"{journal.old.name} ({journal.old.region}) -> {journal.new.name} ({journal.new.region}), {journal.path}")
    for name in (*STEP_NAMES, *(end for end in (BACK, DESTROYED) if end in journal.done)):
        print(f"  {journal.done.get(name, '-'):<26}{name}")
    return OK


def _unfinished(path: Path) -> Journal | None:
    """Return the journal of a move that is under way; that of an earlier one is kept under its id."""
    from podwright.operations.moving.journal import Journal  # noqa: PLC0415 — as STEP_NAMES
    from podwright.operations.moving.steps import BACK, DESTROYED  # noqa: PLC0415

    found = Journal.read(path)
    if found is not None and {BACK, DESTROYED} & found.done.keys():
        path.rename(path.with_name(f"{path.stem}-{found.id}.json"))
        return None
    return found


def _meaning(name: str) -> str:
    from podwright.operations.moving.steps import STEPS  # noqa: PLC0415 — as STEP_NAMES

    return (STEPS[name].__doc__ or "").splitlines()[0]


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentError(f"--set {text}: got no KEY=VALUE", "such as --set network.vpc_id=vpc-0123456789abcdef0")
    return key, value
