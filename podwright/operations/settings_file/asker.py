"""Take the answers of ``podwright init`` from flags, the terminal or defaults; ask AWS and the planner for those."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from podwright.aws_session import Session
from podwright.check.account import Account
from podwright.errors import ArgumentError, OperationError
from podwright.operations.settings_file.new_settings_text import Answers

if TYPE_CHECKING:
    from podwright.planning.search import Offer


class Question(NamedTuple):
    """One answer: its flag, its question on the terminal, and its default, given the answers before it.

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

    @property
    def flag(self) -> str:
        """The flag that answers it."""
        return f"--{self.key.replace('_', '-')}"


class Proposal(NamedTuple):
    """The cluster that the planner proposes, and why."""

    instance_type: str
    nodes: int
    reason: str


@dataclass
class Asker:
    """The answers so far."""

    questions: Sequence[Question]
    options: argparse.Namespace
    asks: bool

    def __post_init__(self) -> None:
        self.value_by_key: dict[str, str] = {}
        self._offers: dict[str, list[Offer]] = {}

    def __getitem__(self, key: str) -> str:
        return self.value_by_key.get(key, "")

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
        answers = {key: value for key, value in self.value_by_key.items() if key in Answers.__dataclass_fields__}
        return Answers(**answers, reason=self.reason)

    def _problems(self) -> Iterator[str]:
        """Take the answers, and yield the problems of those that flags give."""
        wrong = False
        for question in self.questions:
            flag, value = question.flag, getattr(self.options, question.key)
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
                self.value_by_key[question.key] = value

    def _ask(self, question: Question) -> str:
        """Ask until the answer is right; an empty line takes the default."""
        default = question.default(self)
        note = question.note(self)
        if note:
            print(note, file=sys.stderr)
        while True:
            print(f"{question.help} [{default or 'none'}]: ", end="", file=sys.stderr, flush=True)
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
        """The zones that offer the instance type, from EC2; None without an answer."""
        try:
            return Account(Session(region=self["region"])).zones_offering(self["instance_type"].removeprefix("ml."))
        except OperationError:
            return None

    def quota(self, instance_type: str) -> float | None:
        """Return the account's quota of a type for clusters; None without an answer."""
        try:
            return Account(Session(region=self["region"])).quotas().get(f"{instance_type} for cluster usage")
        except OperationError:
            return None

    @property
    def offers(self) -> list[Offer]:
        """The cheapest clusters that train the model before the deadline, as the planner computes it."""
        return self.offers_within(self["deadline"])

    def offers_within(self, deadline: str) -> list[Offer]:
        """Return the cheapest clusters for another deadline; each list is computed once."""
        if deadline not in self._offers:
            from podwright.operations.settings_file import planned

            self._offers[deadline] = planned.cheapest_clusters(
                self.model,
                tokens=self["tokens"],
                deadline=deadline,
                instance_type=self.options.instance_type,
                region=self["region"],
            )
        return self._offers[deadline]

    def proposal(self) -> Proposal:
        """Return the best of the offers, of which there must be at least one."""
        from podwright.operations.settings_file import planned
        from podwright.planning.search import proposed

        hardware = proposed(self.offers).hardware
        reason = planned.reason(self.offers, tokens=self["tokens"], deadline=self["deadline"])
        return Proposal(hardware.instance.name, hardware.nodes, reason)

    @property
    def reason(self) -> str:
        """Reason for which the planner proposed the nodes of the answers; empty if it proposed others."""
        if self.options.instance_type or not (self.model and self.offers):
            return ""
        proposal = self.proposal()
        is_it = (proposal.instance_type, str(proposal.nodes)) == (self["instance_type"], self["nodes"])
        return proposal.reason if is_it else ""
