"""``podwright init``: write a first cluster.yaml, from flags, from answers on the terminal, or from an example."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from podwright import checkout
from podwright.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG, config_path
from podwright.operations.errors import ArgumentError, OperationError
from podwright.operations.kit import PROJECT_FILE
from podwright.operations.new_settings import CREATE, EXISTING, EXISTING_VPC, NETWORKS, Answers
from podwright.operations.output import print_json
from podwright.operations.target import add_examples
from podwright_bootstrap.host.shell import write_file

if TYPE_CHECKING:
    from podwright.planning.search import Offer

OK = 0
SCHEMA = "podwright.init/1"
EXAMPLES = checkout.ROOT / "examples"
NAME, REGION, INSTANCE_TYPE, NODES, DEADLINE = "podwright-demo", "us-west-2", "ml.g5.12xlarge", 2, "7d"
SEQUENCE = 2048  # tokens, as `podwright plan` takes it
OFFERS_SHOWN = 5
RUN_FILE = "run.yaml"
WHAT = {RUN_FILE: "the run, as the planner proposes it", PROJECT_FILE: "lets podwright deploy from this folder"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the file to write and the answers."""
    file_help = f"the file to write; default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG}"
    parser.add_argument("file", nargs="?", type=Path, default=config_path(), metavar="FILE", help=file_help)
    parser.add_argument("--example", choices=example_names(), help="copy this example instead")
    answers = parser.add_argument_group("answers", "asked for on a terminal unless given")
    for question in QUESTIONS:
        flag = f"--{question.key.replace('_', '-')}"
        answers.add_argument(flag, metavar=question.metavar, choices=question.choices, help=question.help)
    parser.add_argument("--yes", action="store_true", help="do not ask: take the defaults")
    parser.add_argument("--json", action="store_true", help="print one JSON document; do not ask")
    add_examples(
        parser,
        "podwright init",
        "podwright init --region us-west-2 --instance-type ml.p5.48xlarge --nodes 4 --yes",
        "podwright init --model llama3_2_1b --tokens 5B --deadline 3d",
        "podwright init --example production",
    )


def example_names() -> list[str]:
    """Return the names of the examples that come with podwright."""
    return sorted(path.parent.name for path in EXAMPLES.glob(f"*/{DEFAULT_CONFIG}"))


def run(options: argparse.Namespace) -> int:
    """Write the file, and a run.yaml if a model is named; never overwrite one.

    Raises:
        ArgumentError: a file is there already, or an answer is wrong; all of them are named.
        OperationError: the file cannot be written.
    """
    asker = Asker(options, asks=sys.stdin.isatty() and not (options.yes or options.json or options.example))
    _refuse_to_overwrite([options.file, *([options.file.with_name(RUN_FILE)] if options.model else [])])
    if options.example:
        _refuse_answers(options)
        texts = {options.file: (EXAMPLES / options.example / DEFAULT_CONFIG).read_text(encoding="utf-8")}
    else:
        texts = {options.file: _checked(asker.answers().text(), options.file)}
    if asker.model:
        texts[options.file.with_name(RUN_FILE)] = asker.run_file()
        _refuse_to_overwrite(list(texts))
    kit = options.file.with_name(PROJECT_FILE)
    if not kit.exists() and not Path(PROJECT_FILE).exists():
        texts[kit] = _kit_file()
    for file, text in texts.items():
        _write(file, text)
    _report(options, asker, list(texts))
    return OK


class Question(NamedTuple):
    """One answer: its flag, what is asked on the terminal, and its default, given the answers before it.

    ``problem`` returns what is wrong with an answer, or an empty string. ``note`` is printed before the question.
    """

    key: str
    metavar: str | None
    help: str
    default: Callable[[Asker], str]
    problem: Callable[[str, Asker], str] = lambda _, __: ""
    note: Callable[[Asker], str] = lambda _: ""
    applies: Callable[[Asker], bool] = lambda _: True
    choices: tuple[str, ...] | None = None
    goes_with: str = ""


@dataclass
class Asker:
    """The answers so far."""

    options: argparse.Namespace
    asks: bool

    def __post_init__(self) -> None:
        self.given: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        return self.given.get(key, "")

    @property
    def model(self) -> str:
        """The model to train, or an empty string."""
        return self["model"]

    def answers(self) -> Answers:
        """Take every answer from its flag, the terminal, or its default.

        Raises:
            ArgumentError: flags are wrong; all of them are named.
        """
        problems = list(self._problems())
        if problems:
            raise ArgumentError("; ".join(problems))
        return Answers(**{key: value for key, value in self.given.items() if key in Answers.__dataclass_fields__})

    def _problems(self) -> Iterator[str]:
        """Take the answers, and yield what is wrong with those of flags."""
        wrong = False
        for question in QUESTIONS:
            flag, value = f"--{question.key.replace('_', '-')}", getattr(self.options, question.key)
            if not question.applies(self):
                if value is not None:
                    yield f"{flag} {value}: only with {question.goes_with}"
                continue
            if value is None and wrong:
                continue  # a default may depend on what is wrong
            if value is None:
                value = self._ask(question) if self.asks else question.default(self)
            problem = question.problem(value, self)
            if problem:
                wrong = True
                yield f"{flag} {value}: {problem}" if value else f"{flag} is {problem}"
            else:
                self.given[question.key] = value

    def _ask(self, question: Question) -> str:
        """Ask until the answer is right; an empty line takes the default."""
        default = question.default(self)
        note = question.note(self)
        if note:
            print(note, file=sys.stderr)
        words = f"{question.help} ({', '.join(question.choices)})" if question.choices else question.help
        while True:
            print(f"{words} [{default or 'none'}]: ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise KeyboardInterrupt  # Ctrl-D
            value = line.strip() or default
            problem = question.problem(value, self)
            if question.choices and value not in question.choices:
                problem = f"use one of {', '.join(question.choices)}"
            if not problem:
                return value
            print(f"  {value}: {problem}", file=sys.stderr)

    # ---- what AWS and the planner say ------------------------------------------------------------------------------

    @cached_property
    def zones(self) -> tuple[str, ...] | None:
        """The zones that offer the instance type, as EC2 says; None without an answer."""
        from podwright.check.account import Account  # noqa: PLC0415 — boto3 takes 0.2 s to import
        from podwright.check.errors import UnansweredError  # noqa: PLC0415 — as above

        try:
            return Account(region=self["region"]).zones_offering(self["instance_type"].removeprefix("ml."))
        except UnansweredError:
            return None

    def quota(self, instance_type: str) -> float | None:
        """Return the account's quota of a type for clusters; None without an answer."""
        from podwright.check.account import Account  # noqa: PLC0415 — boto3 takes 0.2 s to import
        from podwright.check.errors import UnansweredError  # noqa: PLC0415 — as above

        try:
            return Account(region=self["region"]).quotas().get(f"{instance_type} for cluster usage")
        except UnansweredError:
            return None

    @cached_property
    def offers(self) -> list[Offer]:
        """The cheapest clusters that train the model before the deadline, as the planner computes it."""
        from podwright.planning import search, units  # noqa: PLC0415 — only a model needs the planner
        from podwright.planning.model import Model  # noqa: PLC0415 — as above
        from podwright.planning.software import Software  # noqa: PLC0415 — as above
        from podwright.planning.trainer_options import OUR_SOFTWARE  # noqa: PLC0415 — as above
        from podwright_constructs.catalog import cluster_instance_types  # noqa: PLC0415 — as above

        wanted = self.options.instance_type
        allowed = set(cluster_instance_types())
        return search.cheapest_cluster(
            Model.of(self.model),
            Software.named(OUR_SOFTWARE),
            tokens=units.parse_count(self["tokens"], what="--tokens"),
            sequence=SEQUENCE,
            deadline_s=units.parse_duration(self["deadline"], what="--deadline"),
            instance_types=[name for name in search.trainable_types() if name in allowed and wanted in {None, name}],
        )

    def run_file(self) -> str:
        """Return a run.yaml that trains the model on the cluster.

        Raises:
            ArgumentError: the model does not fit it.
        """
        from podwright.planning import launch, units  # noqa: PLC0415 — only a model needs the planner
        from podwright.planning.hardware import Hardware  # noqa: PLC0415 — as above
        from podwright.planning.model import Model  # noqa: PLC0415 — as above
        from podwright.planning.plan import make_plan  # noqa: PLC0415 — as above

        plan = make_plan(
            Model.of(self.model),
            Hardware(instance_type=self["instance_type"], nodes=max(1, int(self["nodes"]))),
            sequence=SEQUENCE,
            tokens=units.parse_count(self["tokens"], what="--tokens"),
        )
        reasons = launch.obstacles(plan, launch.Source())
        cluster = f"{self['nodes']} x {self['instance_type']}"
        if reasons:
            raise ArgumentError(f"{self.model} on {cluster}: {'; '.join(reasons)}")
        about = (
            f"# {self.model} on {self['tokens']} tokens, planned for {cluster}:\n"
            f"# podwright submit {RUN_FILE} --nodes {self['nodes']}\n"
        )
        return about + launch.run_file(plan, launch.Source())


# ---- questions ---------------------------------------------------------------------------------


def _region_problem(value: str, _: Asker) -> str:
    from podwright.settings.regions import HYPERPOD_REGIONS  # noqa: PLC0415 — as in Asker

    return "" if value in HYPERPOD_REGIONS else f"HyperPod is in {', '.join(HYPERPOD_REGIONS)}"


def _zone_default(asker: Asker) -> str:
    from podwright.settings.regions import zone_ids  # noqa: PLC0415 — as in Asker

    return next(iter([*(asker.zones or ()), *zone_ids(asker["region"])]), "")


def _zone_problem(value: str, asker: Asker) -> str:
    from podwright.settings.regions import zone_ids  # noqa: PLC0415 — as in Asker

    known = zone_ids(asker["region"])
    return "" if value in known or not known else f"{asker['region']} has {', '.join(known)}"


def _zone_note(asker: Asker) -> str:
    if asker.zones is None:
        return "AWS did not answer, so the zone is a guess: `podwright check --live` compares it with your account"
    where = ", ".join(asker.zones) or f"no zone of {asker['region']}: choose another region or type"
    return f"EC2 offers {asker['instance_type']} in {where}"


def _model_problem(value: str, _: Asker) -> str:
    from podwright.planning.model import Model, UnknownModelError  # noqa: PLC0415 — as in Asker

    try:
        return str(Model.of(value) and "") if value else ""
    except UnknownModelError as error:
        return str(error)


def _quantity_problem(parse: str, flag: str) -> Callable[[str, Asker], str]:
    def problem(value: str, _: Asker) -> str:
        from podwright.planning import units  # noqa: PLC0415 — as in Asker

        try:
            getattr(units, parse)(value, what=flag)
        except units.UnitError as error:
            return str(error)
        return ""

    return problem


def _tokens_default(asker: Asker) -> str:
    from podwright.planning.model import Model  # noqa: PLC0415 — as in Asker
    from podwright.planning.units import format_count  # noqa: PLC0415 — as in Asker

    return format_count(20 * Model.of(asker.model).active_parameters)


def _offers_note(asker: Asker) -> str:
    if not asker.model:
        return ""
    if not asker.offers:
        return f"no cluster of up to 64 nodes trains {asker.model} within {asker['deadline']}"
    from podwright.planning.report import offers_table  # noqa: PLC0415 — as in Asker

    return f"{offers_table(asker.offers[:OFFERS_SHOWN])}\nPrices: EC2 on-demand, us-east-1"


def _type_default(asker: Asker) -> str:
    return asker.offers[0].hardware.instance.name if asker.model and asker.offers else INSTANCE_TYPE


def _type_problem(value: str, _: Asker) -> str:
    from podwright_constructs.catalog import cluster_instance_types, similar_names  # noqa: PLC0415 — as in Asker

    if value in cluster_instance_types():
        return ""
    similar = similar_names(value)
    hint = f": did you mean {' or '.join(similar)}?" if similar else ""
    return f"HyperPod has no such type{hint}"


def _nodes_default(asker: Asker) -> str:
    of_type = [offer for offer in (asker.offers if asker.model else ()) if _type(offer) == asker["instance_type"]]
    return str(of_type[0].hardware.nodes if of_type else NODES)


def _type(offer: Offer) -> str:
    return offer.hardware.instance.name


def _nodes_problem(value: str, _: Asker) -> str:
    from podwright_constructs.facts import MAX_INSTANCE_COUNT  # noqa: PLC0415 — as in Asker

    right = value.isdecimal() and int(value) <= MAX_INSTANCE_COUNT
    return "" if right else f"need a whole number from 0 to {MAX_INSTANCE_COUNT}"


def _nodes_note(asker: Asker) -> str:
    from podwright.diagram import prices  # noqa: PLC0415 — as in Asker

    price, quota = prices.nodes(asker["instance_type"], 1, 0), asker.quota(asker["instance_type"])
    cost = f"{price:.2f} $/h a node ({prices.LABEL})" if price else "EC2 publishes no price"
    allowed = f", your quota in {asker['region']} is {quota:g}" if quota is not None else ""
    return f"{asker['instance_type']}: {cost}{allowed}"


def _network_default(asker: Asker) -> str:
    if asker.options.subnet_id or asker.options.security_group_id:
        return EXISTING
    return EXISTING_VPC if asker.options.vpc_id else CREATE


def _needed(what: str) -> Callable[[str, Asker], str]:
    return lambda value, _: "" if value else f"needed: {what}"


def _region_default(_: Asker) -> str:
    from podwright.settings.regions import HYPERPOD_REGIONS  # noqa: PLC0415 — as in Asker

    own = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    return own if own in HYPERPOD_REGIONS else REGION


def _with_model(asker: Asker) -> bool:
    return bool(asker.model)


def _in_vpc(asker: Asker) -> bool:
    return asker["network"] == EXISTING_VPC


def _all_existing(asker: Asker) -> bool:
    return asker["network"] == EXISTING


QUESTIONS = (
    Question("name", "NAME", "name of the cluster", lambda _: NAME, _needed("letters, digits and hyphens")),
    Question("region", "REGION", "AWS region", _region_default, _region_problem),
    Question("model", "MODEL", "model to train, such as llama3_2_1b", lambda _: "", _model_problem),
    Question(
        "tokens",
        "TOKENS",
        "tokens to train it on, such as 5B",
        _tokens_default,
        _quantity_problem("parse_count", "--tokens"),
        applies=_with_model,
        goes_with="--model",
    ),
    Question(
        "deadline",
        "TIME",
        "time it may take, such as 3d",
        lambda _: DEADLINE,
        _quantity_problem("parse_duration", "--deadline"),
        applies=_with_model,
        goes_with="--model",
    ),
    Question("instance_type", "TYPE", "instance type of the compute nodes", _type_default, _type_problem, _offers_note),
    Question("nodes", "N", "number of compute nodes", _nodes_default, _nodes_problem, _nodes_note),
    Question(
        "network", None, "network: new, a new subnet in your VPC, or all yours", _network_default, choices=NETWORKS
    ),
    Question(
        "zone",
        "ZONE_ID",
        "id of the availability zone with your capacity",
        _zone_default,
        _zone_problem,
        _zone_note,
        applies=lambda asker: not _all_existing(asker),
        goes_with="a network whose subnet is created",
    ),
    Question(
        "vpc_id",
        "ID",
        "your VPC, vpc-…",
        lambda _: "",
        _needed("the VPC's id, vpc-…"),
        applies=lambda asker: asker["network"] != CREATE,
        goes_with="--network existing_vpc or existing",
    ),
    Question(
        "subnet_cidr",
        "CIDR",
        "addresses of the new subnet, free in the VPC",
        lambda _: "",
        _needed("addresses such as 10.0.16.0/20"),
        applies=_in_vpc,
        goes_with="--network existing_vpc",
    ),
    Question(
        "nat_gateway_id",
        "ID",
        "your NAT gateway, the subnet's way to the internet, nat-…",
        lambda _: "",
        _needed("the gateway's id"),
        applies=_in_vpc,
        goes_with="--network existing_vpc",
    ),
    Question(
        "subnet_id",
        "ID",
        "your private subnet, subnet-…",
        lambda _: "",
        _needed("the subnet's id"),
        applies=_all_existing,
        goes_with="--network existing",
    ),
    Question(
        "security_group_id",
        "ID",
        "your security group, sg-…",
        lambda _: "",
        _needed("the group's id"),
        applies=_all_existing,
        goes_with="--network existing",
    ),
)


# ---- files -------------------------------------------------------------------------------------


def _refuse_to_overwrite(files: list[Path]) -> None:
    there = [str(file) for file in files if file.exists() or file.is_symlink()]
    if there:
        hint = "nothing is overwritten: name another file or folder"
        raise ArgumentError(f"{' and '.join(there)}: there already", hint)


def _refuse_answers(options: argparse.Namespace) -> None:
    given = [f"--{question.key.replace('_', '-')}" for question in QUESTIONS if getattr(options, question.key)]
    if given:
        raise ArgumentError(f"--example does not go with {', '.join(given)}", "copy the example, and edit the copy")


def _checked(text: str, file: Path) -> str:
    """Return a text that ``podwright check`` accepts.

    Raises:
        ArgumentError: it finds errors; all of them are named.
    """
    from podwright.check.document import Document  # noqa: PLC0415 — --help need not wait for pydantic
    from podwright.check.findings import Level  # noqa: PLC0415 — as above
    from podwright.check.report import check_document  # noqa: PLC0415 — as above

    report = check_document(Document.parse(text, file=file))
    errors = [finding for finding in report.findings if finding.level is Level.ERROR]
    wrong = [f"{error.message} ({error.hint})" if error.hint else error.message for error in errors]
    if wrong:
        raise ArgumentError("; ".join(wrong), f"{file} was not written")
    return text


def _kit_file() -> str:
    """Return a cdktf.json that runs podwright's app from any folder, with this Python."""
    kit = json.loads((checkout.ROOT / PROJECT_FILE).read_text(encoding="utf-8"))
    kit["app"] = shlex.join([sys.executable, str(checkout.ROOT / "main.py")])
    return json.dumps(kit, indent=2) + "\n"


def _write(file: Path, text: str) -> None:
    try:
        write_file(file, text)
    except OSError as error:
        raise OperationError(f"cannot write {file}: {error.strerror}") from error


def _report(options: argparse.Namespace, asker: Asker, written: list[Path]) -> None:
    """Print what was written, the price of the nodes, and the next commands."""
    from podwright.check.load import load  # noqa: PLC0415 — as in _checked
    from podwright.diagram import prices  # noqa: PLC0415 — as in _checked

    settings = load(options.file)
    groups = settings.cluster.instance_groups
    priced = [prices.nodes(group.instance_type, group.count, group.volume_gib) for group in groups]
    usd_per_hour = None if None in priced else sum(price or 0 for price in priced)
    option = "" if options.file == config_path() else f" {options.file}"
    following = [f"podwright check{option}", f"podwright deploy{option}"]
    if asker.model:
        following.append(f"podwright submit {options.file.with_name(RUN_FILE)} --nodes {asker['nodes']}")
    if options.json:
        document = {"written": written, "example": options.example, "answers": asker.given}
        print_json(SCHEMA, {**document, "usd_per_hour": usd_per_hour, "next": following})
        return
    nodes = ", ".join(f"{group.count} x {group.instance_type}" for group in groups)
    cost = "a price that EC2 does not publish" if usd_per_hour is None else f"{usd_per_hour:.2f} $/h"
    print(f"{options.file}: {settings.name} in {settings.region}: {nodes}")
    print(f"  nodes cost {cost} while they run ({prices.LABEL}); nothing is deployed yet")
    if asker["zone"] and not asker.asks and not options.zone:
        print(f"  zone {asker['zone']}: {_zone_note(asker)}")
    for file in written[1:]:
        print(f"{file}: {WHAT[file.name]}")
    print("next:\n" + "\n".join(f"  {line}" for line in following))
