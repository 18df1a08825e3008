"""``podwright init``: write a first cluster.yaml, from flags, from answers on the terminal, or from an example.

The planner, the checks and pydantic are loaded when the command runs, so that ``--help`` stays quick.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright import checkout
from podwright.config_file import DEFAULT_CONFIG, add_file, config_path
from podwright.json_document import JsonObject
from podwright.operations.deployment.kit import PROJECT_FILE
from podwright.operations.errors import ArgumentError, OperationError
from podwright.operations.output import print_document
from podwright.operations.settings_file import schema
from podwright.operations.settings_file.asker import Asker
from podwright.operations.settings_file.questions import QUESTIONS, zone_note
from podwright.operations.settings_file.schema import EXAMPLES, with_header
from podwright.operations.target import add_examples
from podwright_common.atomic_file import write_file
from podwright_common.exit_status import OK

KIT = checkout.ROOT / PROJECT_FILE
OWN_APP = EXAMPLES / "own_app" / "main.py"
RUN_FILE = "run.yaml"
WHAT = {
    OWN_APP.name: "the cdktf app, yours to edit",
    PROJECT_FILE: "lets podwright deploy from this folder",
    schema.CLUSTER_SCHEMA.name: "lets editors complete and explain the keys",
    schema.RUN_SCHEMA.name: "the same for the run",
}


@dataclass(frozen=True, kw_only=True)
class Init(JsonObject):
    """The document of `podwright init --json`."""

    schema: Literal["podwright.init/1"] = "podwright.init/1"
    written: list[str]
    """Files."""
    example: str | None
    """The example that was copied."""
    answers: dict[str, str]
    usd_per_hour: float | None
    """Of the nodes; null where EC2 publishes no price."""
    next: list[str]
    """Commands."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the file to write and the answers."""
    add_file(parser, "the file to write. ")
    parser.set_defaults(example=None, own_app=False)
    if names := example_names():  # a bare `pip install` of the checkout leaves them out
        words = f"copy this example instead: {', '.join(names)}"
        parser.add_argument("--example", choices=names, metavar="NAME", help=words)
    if OWN_APP.exists():
        words = f"also write the cdktf app, {OWN_APP.name}, for resources of yours beside podwright's"
        parser.add_argument("--own-app", action="store_true", help=words)
    answers = parser.add_argument_group("answers", "asked for on a terminal unless given")
    for question in QUESTIONS:
        answers.add_argument(question.flag, metavar=question.metavar, choices=question.choices, help=question.help)
    parser.add_argument("--yes", action="store_true", help="do not ask: take the defaults")
    parser.add_argument("--json", action="store_true", help="print one JSON document; do not ask")
    add_examples(
        parser,
        "podwright init",
        "podwright init --region us-west-2 --instance-type ml.p5.48xlarge --nodes 4 --yes",
        "podwright init --model llama3_2_1b --tokens 5B --deadline 3d",
        "podwright init --example production --own-app",
    )


def example_names() -> list[str]:
    """Return the names of the examples that come with podwright."""
    return sorted(path.parent.name for path in EXAMPLES.glob(f"*/{DEFAULT_CONFIG}"))


def run(options: argparse.Namespace) -> int:
    """Write the file, and a run.yaml if a model is named; never overwrite one.

    Raises:
        ArgumentError: a file exists already, or an answer is wrong; all of them are named.
        OperationError: writing the file fails.
    """
    asker = Asker(QUESTIONS, options, asks=sys.stdin.isatty() and not (options.yes or options.json or options.example))
    app = [Path(OWN_APP.name), Path(PROJECT_FILE)] if options.own_app else []
    if asker.asks:  # nobody answers questions in vain
        _refuse_to_overwrite([options.file, *([options.file.with_name(RUN_FILE)] if options.model else []), *app])
    if options.example:
        _refuse_answers(options)
        text = (EXAMPLES / options.example / DEFAULT_CONFIG).read_text(encoding="utf-8")
    else:
        text = _checked(asker.answers().text(), options.file)
    texts = {options.file: with_header(text, schema.CLUSTER_SCHEMA)}
    price = ""
    if asker.model:
        text, price = _run_of(asker)
        texts[options.file.with_name(RUN_FILE)] = with_header(text, schema.RUN_SCHEMA)
    _refuse_to_overwrite([*texts, *app])
    texts |= _schemas(options.file.parent, with_run=bool(asker.model))
    kit = Path(PROJECT_FILE)  # in this folder, where the next command runs, wherever the file is
    if options.own_app:
        texts[Path(OWN_APP.name)] = OWN_APP.read_text(encoding="utf-8")
    if KIT.exists() and not kit.exists():
        texts[kit] = _kit_file(owns_app=options.own_app)
    for file, text in texts.items():
        _write(file, text)
    _report(options, asker, {file: price if file.name == RUN_FILE else WHAT.get(file.name, "") for file in texts})
    return OK


def _run_of(asker: Asker) -> tuple[str, str]:
    """Return run.yaml, and its tokens, time and price.

    Raises:
        ArgumentError: the model does not fit the nodes, or they take longer than ``--deadline``.
    """
    from podwright.operations.settings_file import planned
    from podwright.planning.units import parse_duration

    kind, nodes, deadline = asker["instance_type"], asker["nodes"], asker["deadline"]
    run = planned.run(asker.model, tokens=asker["tokens"], instance_type=kind, nodes=nodes, region=asker["region"])
    if run.seconds <= parse_duration(deadline, label="--deadline"):
        return run.text, run.price
    enough = [offer.hardware.nodes for offer in asker.offers if offer.hardware.instance.name == kind]
    if asker.options.deadline is None:  # a default: nobody said that it must be kept
        return run.text, f"{run.price}, longer than the usual {deadline}"
    hint = f"--nodes {enough[0]} is enough" if enough else "give more time, fewer tokens or another --instance-type"
    raise ArgumentError(f"--deadline {deadline}: {run.price} on {nodes} x {kind}", hint)


# ---- files -------------------------------------------------------------------------------------


def _refuse_to_overwrite(files: list[Path]) -> None:
    existing = [str(file) for file in files if file.exists() or file.is_symlink()]
    if existing:
        hint = "nothing is overwritten: name another file or folder"
        raise ArgumentError(f"{' and '.join(existing)}: exists already", hint)


def _refuse_answers(options: argparse.Namespace) -> None:
    flags = [question.flag for question in QUESTIONS if getattr(options, question.key)]
    if flags:
        raise ArgumentError(f"--example conflicts with {', '.join(flags)}", "copy the example, and edit the copy")


def _checked(text: str, file: Path) -> str:
    """Return a text that ``podwright check`` accepts.

    Raises:
        ArgumentError: it finds errors; all of them are named.
    """
    from podwright.check.document import Document  # --help need not wait for pydantic
    from podwright.check.findings import Level
    from podwright.check.report import check_document

    report = check_document(Document.parse(text, file=file))
    errors = [finding for finding in report.findings if finding.level is Level.ERROR]
    wrong = [f"{error.message} ({error.hint})" if error.hint else error.message for error in errors]
    if wrong:
        raise ArgumentError("; ".join(wrong), f"{file} was not written")
    return text


def _schemas(folder: Path, *, with_run: bool) -> dict[Path, str]:
    """Return the schemas that the files name and that are not in their folder yet."""
    texts = {schema.CLUSTER_SCHEMA: schema.cluster_text, schema.RUN_SCHEMA: schema.run_text}
    schema_paths = [schema.CLUSTER_SCHEMA, *([schema.RUN_SCHEMA] if with_run else [])]
    return {folder / path: texts[path]() for path in schema_paths if not (folder / path).exists()}


def _kit_file(*, owns_app: bool) -> str:
    """Return a cdktf.json for any folder: for podwright's app with this Python, or for the folder's with PATH's."""
    kit = json.loads(KIT.read_text(encoding="utf-8"))
    own_app = [sys.executable, str(checkout.ROOT / "main.py")]
    kit["app"] = shlex.join(["python3", OWN_APP.name] if owns_app else own_app)
    return json.dumps(kit, indent=2) + "\n"


def _write(file: Path, text: str) -> None:
    try:
        write_file(file, text)
    except OSError as error:
        raise OperationError(f"cannot write {file}: {error.strerror}") from error


def _report(options: argparse.Namespace, asker: Asker, written: dict[Path, str]) -> None:
    """Print the written files, the price of the nodes, and the next commands."""
    from podwright.check.load import load
    from podwright.diagram import prices
    from podwright.operations.deployment.deploy import AUTHORIZE

    settings = load(options.file)
    groups = settings.cluster.instance_groups
    region = settings.region
    priced = [prices.nodes(group.instance_type, group.count, group.volume_gib, region=region) for group in groups]
    usd_per_hour = None if None in priced else sum(price or 0 for price in priced)
    option = "" if options.file == config_path() else f" {options.file}"
    following = [f"podwright check{option}", f"podwright deploy{option}"]
    if asker.model:
        following += [AUTHORIZE, f"podwright submit {options.file.with_name(RUN_FILE)} --nodes {asker['nodes']}"]
    if options.json:
        document = Init(
            written=[str(file) for file in written],
            example=options.example,
            answers=asker.value_by_key,
            usd_per_hour=usd_per_hour,
            next=following,
        )
        print_document(document)
        return
    nodes = ", ".join(f"{group.count} x {group.instance_type}" for group in groups)
    cost = "a price that EC2 does not publish" if usd_per_hour is None else f"{usd_per_hour:.2f} $/h"
    print(f"{options.file}: {settings.name} in {settings.region}\n  {nodes}")
    based = prices.label(region, [group.instance_type for group in groups])
    print(f"  nodes cost {cost} while they run ({based})\n  nothing is deployed yet")
    if asker.reason and not asker.asks:
        print(f"  {asker.reason}")
    if asker["zone"] and not asker.asks and not options.zone:
        print(f"  zone {asker['zone']}: {zone_note(asker)}")
    for file, description in list(written.items())[1:]:
        print(f"{file}: {description}")
    print("next:\n" + "\n".join(f"  {line}" for line in following))
