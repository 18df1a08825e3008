"""IAM's SimulatePrincipalPolicy, which moto lacks: a role's own and attached policies.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from moto.iam.models import iam_backends

from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.aws.policy_evaluation import decide
from podwright_rehearsal.aws.principals import statements


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
    role_statements = statements(role)
    resources = list(_members(form, "ResourceArns")) or ["*"]
    context = _context(form)
    results = (
        _result(action, resource, decide(role_statements, action, resource, context))
        for action in _members(form, "ActionNames")
        for resource in resources
    )
    return (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        "<SimulatePrincipalPolicyResult>"
        f"<IsTruncated>false</IsTruncated><EvaluationResults>{''.join(results)}</EvaluationResults>"
        "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
    )


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


def _members(form: Mapping[str, str], name: str) -> Iterator[str]:
    """Yield the items of a list in the query protocol: ``ActionNames.member.1`` and so on."""
    number = 1
    while (value := form.get(f"{name}.member.{number}")) is not None:
        yield value
        number += 1
