"""What a cluster wants of its nodes beyond Slurm and a shared file system: one field per feature, each off by default.

Written by the constructs below ``podwright.nodes`` of ``provisioning_parameters.json``, read by the steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class PamSlurmAdopt:
    """Logins on compute nodes for who has a job there."""

    admins: Tuple[str, ...]  # who may log in without


@dataclass(frozen=True)
class NodeSettings:
    """The features of a cluster's nodes."""

    pam_slurm_adopt: Optional[PamSlurmAdopt] = None

    def to_dict(self) -> Dict[str, Any]:
        """The features that are on."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> NodeSettings:
        """Read what ``to_dict`` gave; a newer writer's keys are left alone. Raises ``TypeError`` for missing ones."""
        return build(cls, content)


def build(cls: Type[T], content: Mapping[str, Any]) -> T:
    """Make a dataclass, and those in it, of plain JSON."""
    types = get_type_hints(cls)
    known = {item.name for item in fields(cls) if item.name in content}  # type: ignore[arg-type]
    return cls(**{name: _value(types[name], content[name]) for name in known})


def _value(kind: Any, content: Any) -> Any:
    """JSON as the type says: a dataclass, an optional one, a tuple of them, or the plain value."""
    if get_origin(kind) is Union:  # Optional
        return None if content is None else _value(get_args(kind)[0], content)
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], item) for item in content)
    return build(kind, content) if isinstance(kind, type) and is_dataclass(kind) else content
