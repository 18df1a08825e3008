"""IAM's SimulatePrincipalPolicy, which moto lacks: a role's own and attached policies.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any
from xml.sax.saxutils import escape

from moto.iam.models import iam_backends

from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.identity import ACCOUNT_ID

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "ArnEquals": fnmatchcase,
    "ArnLike": fnmatchcase,
    "Bool": lambda value, pattern: value.lower() == pattern.lower(),
    "BoolIfExists": lambda value, pattern: value.lower() == pattern.lower(),
    "ForAnyValue:StringEquals": str.__eq__,
    "StringEquals": str.__eq__,
    "StringLike": fnmatchcase,
}


VARIABLE = re.compile(r"\$\{([\w:/-]+)\}")


def simulate(form: Mapping[str, str]) -> str:
    """Return the answer's XML.

    Raises:
        AwsError: there is no such role; users and groups are not simulated.
    """
    arn = form["PolicySourceArn"]
    backend = iam_backends[ACCOUNT_ID]["aws"]
    role = next((role for role in backend.roles.values() if role.arn == arn), None)
    if role is None:
        raise AwsError("NoSuchEntity", f"The principal {arn} cannot be found")
    versions = [version for policy in role.managed_policies.values() for version in policy.versions]
    documents = [*role.policies.values(), *(version.document for version in versions if version.is_default)]
    statements = [statement for document in documents for statement in _statements(document)]
    resources = list(_members(form, "ResourceArns")) or ["*"]
    context = _context(form)
    statements = [item for item in statements if _conditions_hold(item.get("Condition", {}), context)]
    results = (
        _result(action, resource, _decide(statements, action, resource, context))
        for action in _members(form, "ActionNames")
        for resource in resources
    )
    return (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        "<SimulatePrincipalPolicyResult>"
        f"<IsTruncated>false</IsTruncated><EvaluationResults>{''.join(results)}</EvaluationResults>"
        "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
    )


def _statements(document: str | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parsed = json.loads(document) if isinstance(document, str) else document
    return list(_list(parsed["Statement"]))


def _decide(statements: list[Mapping[str, Any]], action: str, resource: str, context: Mapping[str, list[str]]) -> str:
    """Return IAM's word: an explicit Deny wins over every Allow."""
    effects = {
        statement["Effect"]
        for statement in statements
        if any(fnmatchcase(action.lower(), pattern.lower()) for pattern in _list(statement.get("Action", ())))
        and any(fnmatchcase(resource, _filled(pattern, context)) for pattern in _list(statement.get("Resource", ())))
    }
    return "explicitDeny" if "Deny" in effects else "allowed" if "Allow" in effects else "implicitDeny"


def _filled(pattern: str, context: Mapping[str, list[str]]) -> str:
    """Return a resource with the context's values in place of variables such as ``${aws:userid}``.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
    """
    return VARIABLE.sub(lambda match: next(iter(context.get(match[1].lower(), [])), match[0]), pattern)


def _result(action: str, resource: str, decision: str) -> str:
    return (
        f"<member><EvalActionName>{escape(action)}</EvalActionName>"
        f"<EvalResourceName>{escape(resource)}</EvalResourceName><EvalDecision>{decision}</EvalDecision></member>"
    )


def _context(form: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the request's context: values by condition key, in lower case."""
    entries: dict[str, list[str]] = {}
    number = 1
    while (key := form.get(f"ContextEntries.member.{number}.ContextKeyName")) is not None:
        values = _members(form, f"ContextEntries.member.{number}.ContextKeyValues")
        entries[key.lower()] = list(values)
        number += 1
    return entries


def _conditions_hold(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, list[str]]) -> bool:
    """Return whether each key of the context has one of its values; a key that it lacks holds with IfExists alone.

    Raises:
        AwsError: an operator that the policies of this project do not use.
    """
    for operator, values_by_key in conditions.items():
        if operator not in OPERATORS:
            raise AwsError("InvalidInput", f"SimulatePrincipalPolicy does not know the operator {operator} here")
        for key, values in values_by_key.items():
            patterns = [str(value) for value in _list(values)]
            context_values = context.get(key.lower(), [])
            if not context_values and operator.endswith("IfExists"):
                continue
            if not any(OPERATORS[operator](value, pattern) for value in context_values for pattern in patterns):
                return False
    return True


def _members(form: Mapping[str, str], name: str) -> Iterator[str]:
    """Yield the items of a list in the query protocol: ``ActionNames.member.1`` and so on."""
    number = 1
    while (value := form.get(f"{name}.member.{number}")) is not None:
        yield value
        number += 1


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
