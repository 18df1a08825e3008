"""The cdktf app: cluster.yaml in, cdktf.out out. Run it with ``cdktf synth``, or alone."""

# ruff: noqa: E402 -- cdktf starts Node when it is imported, and Node's environment is set first

import os
import sys

# Its JavaScript half prints a banner about Node's age with every command otherwise.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

from cdktf import App

from podwright.findings import ConfigError
from podwright.settings import config_path, load
from stacks.cluster import ClusterStack
from stacks.foundation import FoundationStack


def main() -> int:
    """Synthesize both stacks, or say everything that is wrong with the settings."""
    try:
        settings = load(config_path())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    app = App()
    foundation = FoundationStack(app, settings=settings)
    ClusterStack(app, settings=settings, foundation=foundation)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
