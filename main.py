"""The cdktf app: read cluster.yaml, write cdktf.out. Run it with ``cdktf synth``, or alone."""

# ruff: noqa: E402 -- cdktf starts Node when it is imported, and Node's environment is set first

import os
import sys

# Its JavaScript half prints a banner about Node's age with every command otherwise.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

from podwright.check.load import load
from podwright.config_file import config_path
from podwright.errors import PodwrightError
from podwright_constructs.problems import InvalidArgumentsError
from podwright_stacks.app import synthesize


def main() -> int:
    """Synthesize both stacks, or report everything that is wrong."""
    try:
        synthesize(load(config_path()))
    except PodwrightError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except InvalidArgumentsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
