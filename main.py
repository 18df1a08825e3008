"""The kit's app: read cluster.yaml, write cdktf.out. Run it with ``cdktf synth``, or alone."""

# ruff: noqa: E402, PLC0415 -- the kit starts Node when it is imported, and Node's environment is set first

import os
import sys

# Its JavaScript half prints a banner about Node's age with every command otherwise.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

from podwright.check.load import load
from podwright.config_file import config_path
from podwright.errors import PodwrightError
from podwright_constructs.kit_choice import UnknownKitError
from podwright_constructs.problems import InvalidArgumentsError


def main() -> int:
    """Synthesize both stacks, or report everything that is wrong."""
    try:
        settings = load(config_path())
        from podwright_stacks.app import synthesize  # starts the kit's Node, which wrong settings do not need

        synthesize(settings)
    except PodwrightError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except (InvalidArgumentsError, UnknownKitError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
