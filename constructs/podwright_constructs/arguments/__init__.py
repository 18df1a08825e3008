"""Arguments of constructs, one dataclass each: types, defaults and documentation. No cdktf.

A construct takes its dataclass, ``podwright_constructs.checks`` checks it, settings read from a file may inherit it,
and ``docs/constructs.md`` prints it.
"""

from __future__ import annotations

from typing import get_type_hints

from typing_extensions import Doc


def documentation(arguments: type) -> dict[str, str]:
    """Return the documentation of each field that is annotated with ``Doc``."""
    return {
        name: item.documentation
        for name, hint in get_type_hints(arguments, include_extras=True).items()
        for item in getattr(hint, "__metadata__", ())
        if isinstance(item, Doc)
    }
