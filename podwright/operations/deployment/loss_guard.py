"""Changes that a deployment makes only when they are named: they end jobs, or lose data.

``podwright deploy`` reads Terraform's plan and refuses them. Under ``cdktf deploy`` Terraform itself has to refuse:
``podwright_constructs/replacement_guard.py`` and ``on_destroy: retain`` make it do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from podwright.errors import ArgumentError
from podwright.operations.deployment.planned_changes import CREATE, DESTROY, REPLACE, Change
from podwright.resource_types import CLUSTER, resource_type


def refuse_losses(
    changes: Mapping[str, Sequence[Change] | None], *, allowed: Sequence[str], deployed: str = "nothing"
) -> None:
    """Refuse to replace or destroy resources that hold jobs or data, unless they are named.

    Args:
        changes: the changes by part; None for a cluster that is there and has no plan yet.
        allowed: construct paths, as a preview shows them.
        deployed: what was deployed before, for the message.

    Raises:
        ArgumentError: there is such a change; all of them are in it, each with the setting's argument.
    """
    lines = [line for path, line in _losses(changes) if path not in allowed]
    if lines:
        hint = "undo it in the settings file, or continue with --replace PATH for each path"
        raise ArgumentError(f"{deployed} was deployed: {'; '.join(lines)}", hint)


def refuse_kept(
    changes: Mapping[str, Sequence[Change] | None], *, retaining_keys: Mapping[str, str], allowed: Sequence[str]
) -> None:
    """Refuse to replace a resource that is named, but that the settings keep: Terraform would refuse in the midst.

    Args:
        changes: the changes by part; None for a cluster that is there and has no plan yet.
        retaining_keys: the key that keeps a resource, by construct path.
        allowed: construct paths that the user named.

    Raises:
        ArgumentError: there is such a resource; all of them are in it, each with its key.
    """
    verbs = {change.path: change.verb for stack_changes in changes.values() for change in stack_changes or ()}
    keys = [
        retaining_keys[path] for path in allowed if path in retaining_keys and verbs.get(path) in {REPLACE, DESTROY}
    ]
    if keys:
        are = "is" if len(keys) == 1 else "are"
        hint = f"set {' and '.join(keys)} to destroy, or to backup and deploy that first, and repeat the command"
        raise ArgumentError(f"{' and '.join(keys)} {are} `retain`, so nothing is replaced", hint)


def _losses(changes: Mapping[str, Sequence[Change] | None]) -> Iterator[tuple[str, str]]:
    """Yield path and reason of each such change."""
    in_cluster = changes.get("cluster") or ()
    has_nodes = not any(change.kind == CLUSTER and change.verb == CREATE for change in in_cluster)
    for change in (change for stack_changes in changes.values() for change in stack_changes or ()):
        if change.verb not in {REPLACE, DESTROY}:
            continue
        kind = resource_type(change.kind)
        loss = kind.loss
        if not loss and has_nodes and kind.holds_nodes:
            loss = "has the cluster's nodes in it: destroy the cluster first"
        if loss:
            verb = f"{change.verb} {change.path}"
            because = f" because of {', '.join(change.keys)}" if change.keys else ""
            yield change.path, f"the settings {verb}{because}, which {loss}"
