"""Run ``podwright plan`` as ``python -m podwright.planning``."""

import argparse

from podwright.planning.command import run
from podwright.planning.plan_arguments import add_arguments

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="podwright plan", description="Predict the memory, speed, time and cost of a training run."
    )
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
