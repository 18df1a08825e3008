"""``python -m podwright.planning``: the same as ``podwright plan``."""

import argparse

from podwright.planning.arguments import add_arguments
from podwright.planning.command import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="podwright plan", description="Memory, speed, days and dollars of a run.")
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
