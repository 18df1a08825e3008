"""The cdktf app of this folder, which is yours: `podwright deploy` runs it, and so does `cdktf synth`.

cluster.yaml has the settings; `add_own` is where resources of yours come beside podwright's.
"""

# ruff: noqa: E402, PLC0415 -- the kit starts Node when it is imported, and Node's environment is set first

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

# Its JavaScript half prints a banner about Node's age with every command otherwise.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

from podwright.check.load import load
from podwright.config_file import config_path
from podwright.errors import PodwrightError
from podwright_constructs.problems import InvalidArgumentsError

if TYPE_CHECKING:
    from podwright_stacks.cluster import ClusterStack
    from podwright_stacks.foundation import FoundationStack


def add_own(foundation: FoundationStack, cluster: ClusterStack) -> None:
    """Add resources and permissions of yours to the stacks.

    For example, nodes that pull from ECR:
    foundation.roles["compute"].add_statement({"actions": ["ecr:GetAuthorizationToken"], "resources": ["*"]})
    """


def main() -> int:
    """Write Terraform's JSON of both stacks into cdktf.out, or report everything that is wrong."""
    try:
        settings = load(config_path())
        from podwright_stacks.app import synthesize

        synthesize(settings, add_own=add_own)
    except PodwrightError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except InvalidArgumentsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
