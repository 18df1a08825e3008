"""Changes that a deployment would make: a line per resource, from Terraform's own plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from podwright.json_document import JsonObject
from podwright.operations.deployment.deployed_stacks import DeployedStack
from podwright_constructs.cluster_properties import create_only

Verb = Literal["create", "update", "replace", "destroy"]
CREATE: Verb = "create"
UPDATE: Verb = "update"
REPLACE: Verb = "replace"
DESTROY: Verb = "destroy"
DESIRED_STATE = "desired_state"  # Cloud Control's argument with all properties of a cluster
SIGNS = {CREATE: "+", UPDATE: "~", REPLACE: "!", DESTROY: "-"}
_VERBS = {
    ("create",): CREATE,
    ("update",): UPDATE,
    ("delete",): DESTROY,
    ("delete", "create"): REPLACE,
    ("create", "delete"): REPLACE,
}


@dataclass(frozen=True)
class Change(JsonObject):
    """A resource that changes."""

    stack: str
    verb: Verb
    path: str
    """Of the construct, in its stack."""
    kind: str = field(metadata={"key": "type"})
    """Terraform's."""
    keys: tuple[str, ...]
    """The arguments that differ, where it is updated or replaced."""

    def line(self) -> str:
        """Return the change for a terminal."""
        return f"{SIGNS[self.verb]} {self.path} ({self.kind})" + (f": {', '.join(self.keys)}" if self.keys else "")


def planned(stack: DeployedStack) -> list[Change]:
    """Return the changes that an apply of the stack's synthesized files would make.

    The plan compares the files with the state, without asking AWS; a stack that was never deployed is all new.

    Raises:
        TerraformError: Terraform cannot plan.
    """
    paths = {address: path for path, address in stack.addresses().items()}
    state = stack.state()
    if not state.get("resources") and not state.get("outputs"):
        return [
            Change(stack.name, CREATE, _short(path), address.partition(".")[0], ()) for address, path in paths.items()
        ]
    return list(_changes(stack.name, stack.plan(), paths))


def summary(changes: list[Change]) -> str:
    """Count the changes: ``3 to create, 1 to update``."""
    counts = Counter(change.verb for change in changes)
    return ", ".join(f"{counts[verb]} to {verb}" for verb in SIGNS if counts[verb]) or "nothing to change"


def _changes(name: str, plan: dict[str, Any], paths: dict[str, str]) -> Iterator[Change]:
    for item in plan.get("resource_changes", ()):
        verb = _VERBS.get(tuple(item["change"]["actions"]))
        if verb and item["mode"] == "managed":
            keys = tuple(_differences(item["change"])) if verb == UPDATE else ()
            keys = tuple(_replacing(item["change"])) if verb == REPLACE else keys
            path = paths.get(item["address"], item["address"])
            yield Change(name, verb, _short(path), item["type"], keys)


def _differences(change: dict[str, Any]) -> Iterator[str]:
    before, after = change["before"] or {}, change["after"] or {}
    unknown = change.get("after_unknown") or {}
    yield from (key for key in sorted({*before, *after}) if before.get(key) != after.get(key) and not unknown.get(key))


def _replacing(change: dict[str, Any]) -> Iterator[str]:
    """Yield the arguments that only a new resource can have; of a cluster, its properties."""
    keys = list(dict.fromkeys(str(path[0]) for path in change.get("replace_paths", ())))
    for key in keys or _differences(change):
        before, after = ((change[side] or {}).get(key) for side in ("before", "after"))
        if key == DESIRED_STATE and before and after:
            planned = create_only(json.loads(after))
            yield from (path for path, value in create_only(json.loads(before)).items() if value != planned[path])
        else:
            yield key


def _short(path: str) -> str:
    """Return a construct's path without its stack."""
    return path.partition("/")[2] or path
