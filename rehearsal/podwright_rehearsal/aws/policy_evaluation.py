"""IAM's evaluation of policy statements: actions, resources, conditions, and an explicit Deny above every Allow.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from podwright_rehearsal.aws.aws_errors import AwsError

Decision = Literal["allowed", "explicitDeny", "implicitDeny"]
Context = Mapping[str, Sequence[str]]  # Values by condition key, in lower case.
Statement = Mapping[str, Any]

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "ArnEquals": fnmatchcase,
    "ArnLike": fnmatchcase,
    "Bool": lambda value, pattern: value.lower() == pattern.lower(),
    "StringEquals": str.__eq__,
    "StringEqualsIgnoreCase": lambda value, pattern: value.lower() == pattern.lower(),
    "StringLike": fnmatchcase,
}
IF_EXISTS, FOR_ALL, FOR_ANY = "IfExists", "ForAllValues:", "ForAnyValue:"
_VARIABLE = re.compile(r"\$\{([\w:/-]+)\}")


def statements_of(documents: Iterable[str | Mapping[str, Any]]) -> list[Statement]:
    """Return the statements of policy documents, which are JSON or parsed."""
    parsed = (json.loads(document) if isinstance(document, str) else document for document in documents)
    return [statement for document in parsed for statement in _list(document["Statement"])]


def decide(statements: Iterable[Statement], action: str, resource: str, context: Context) -> Decision:
    """Return IAM's decision on one action on one resource.

    Raises:
        AwsError: a statement on the action has a condition operator that the policies of this project do not use.
    """
    effects = {
        statement["Effect"]
        for statement in statements
        if _names_action(statement, action)
        and _names_resource(statement, resource, context)
        and _conditions_hold(statement.get("Condition", {}), context)
    }
    return "explicitDeny" if "Deny" in effects else "allowed" if "Allow" in effects else "implicitDeny"


def _names_action(statement: Statement, action: str) -> bool:
    patterns = _list(statement.get("Action", statement.get("NotAction", ())))
    matches = any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)
    return matches is not ("NotAction" in statement)


def _names_resource(statement: Statement, resource: str, context: Context) -> bool:
    patterns = _list(statement.get("Resource", statement.get("NotResource", ())))
    matches = any(fnmatchcase(resource, _filled(pattern, context)) for pattern in patterns)
    return matches is not ("NotResource" in statement)


def _filled(pattern: str, context: Context) -> str:
    """Return a resource with the context's values in place of variables such as ``${aws:userid}``.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
    """
    return _VARIABLE.sub(lambda match: next(iter(context.get(match[1].lower(), [])), match[0]), pattern)


def _conditions_hold(conditions: Mapping[str, Mapping[str, Any]], context: Context) -> bool:
    """Return True if each condition key has one of its values."""
    return all(
        _holds(operator, context.get(key.lower(), ()), [str(value) for value in _list(values)])
        for operator, values_by_key in conditions.items()
        for key, values in values_by_key.items()
    )


def _holds(operator: str, values: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if the values of a key meet an operator; a key that the request lacks meets IfExists and "Not"."""
    name = operator.removesuffix(IF_EXISTS).removeprefix(FOR_ALL).removeprefix(FOR_ANY)
    compare = COMPARISONS.get(name.replace("Not", ""))
    if compare is None:
        raise AwsError("InvalidInput", f"The AWS stand-in does not evaluate the condition operator {operator}")
    if not values and (operator.endswith(IF_EXISTS) or operator.startswith(FOR_ALL)):
        return True
    matches = [any(compare(value, pattern) for pattern in patterns) for value in values]
    if operator.startswith(FOR_ALL):
        return all(matches) if "Not" not in name else not any(matches)
    return any(matches) if "Not" not in name else not any(matches)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
