"""Choose the kit that builds the stacks: cdktf, or CDK Terrain, which continues it. Standard library only."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

VARIABLE = "PODWRIGHT_KIT"


@dataclass(frozen=True)
class Kit:
    """A kit: both have the same classes and commands, and write the same JSON except for their version.

    Args:
        name: of its Python package, and of its command line.
        command_package: npm's package of the command line.
    """

    name: str
    command_package: str


# HashiCorp archived https://github.com/hashicorp/terraform-cdk in December 2025;
# https://github.com/open-constructs/cdk-terrain continues it.
CDKTF = Kit("cdktf", "cdktf-cli")
CDKTN = Kit("cdktn", "cdktn-cli")
KITS = {kit.name: kit for kit in (CDKTF, CDKTN)}


class UnknownKitError(ValueError):
    """The environment names a kit that there is not."""


ARCHIVED = (
    f"cdktf was archived in December 2025, and CDK Terrain continues it: `{VARIABLE}={CDKTN.name} podwright setup` "
    f"installs that one, `export {VARIABLE}={CDKTN.name}` has every command use it. This line does not appear if "
    f"{VARIABLE} is set, also to {CDKTF.name}."
)


def chosen() -> Kit:
    """Return the kit that ``PODWRIGHT_KIT`` names; else the one that the app has imported; else cdktf.

    Raises:
        UnknownKitError: the variable names another.
    """
    name = os.environ.get(VARIABLE)
    if name and name not in KITS:
        raise UnknownKitError(f"{VARIABLE}: got {name}, need {' or '.join(KITS)}")
    return KITS[name] if name else next((kit for kit in KITS.values() if kit.name in sys.modules), CDKTF)
