"""Define the arguments of ``podwright plan``. Imports nothing else: every podwright command reads them."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``podwright plan``; quantities may carry units (78B, 5k, 7d)."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="cluster.yaml", help="take instance type and nodes from its compute group"
    )
    parser.add_argument(
        "--run", type=Path, metavar="run.yaml", help="take model, batch, options and steps from a run of our trainer"
    )
    parser.add_argument("--model", metavar="NAME", help="a published model, such as llama3_2_1b or Qwen3-8B")
    parser.add_argument("--instance", metavar="TYPE", help="such as ml.g5.12xlarge")
    parser.add_argument("--nodes", metavar="N", help="machines of that type")
    parser.add_argument("--seq-len", metavar="TOKENS", help="tokens per sequence [2048]")
    parser.add_argument("--micro-batch", metavar="N", help="sequences per GPU at a time [the largest that fits]")
    parser.add_argument("--accumulate", metavar="N", help="micro-batches per step [a step of about a million tokens]")
    parser.add_argument(
        "--recompute", choices=("none", "selective", "full"), help="activation recomputation [the least that fits]"
    )
    parser.add_argument("--offload-activations", action="store_true", help="keep block inputs in the host's memory")
    parser.add_argument("--offload-optimizer", action="store_true", help="keep its states in the host's memory")
    parser.add_argument("--hybrid", action="store_true", help="shard inside a machine, replicate between machines")
    parser.add_argument("--precision", choices=("bf16", "fp8"), help="of the products [bf16]")
    parser.add_argument("--optimizer", choices=("adamw", "muon", "adamw_8bit"), help="its states [adamw]")
    parser.add_argument("--tokens", metavar="N", help="tokens of the whole run, as 78B: adds time, cost and loss")
    parser.add_argument(
        "--serve", metavar="N", help="tokens that the model will serve: adds the cheapest size for the same loss"
    )
    parser.add_argument(
        "--curve", type=Path, metavar="metrics.jsonl", help="forecast the loss at --tokens from a run's own curve"
    )
    parser.add_argument(
        "--budget", metavar="USD", help="the largest model, or the cluster for --model, inside this budget"
    )
    parser.add_argument("--deadline", metavar="TIME", help="and inside this time, as 7d")
    parser.add_argument(
        "--usd-per-hour",
        metavar="USD",
        help="price of one machine: a training plan's, or what AWS asks for a capacity block today",
    )
    parser.add_argument(
        "--capacity-block", action="store_true", help="pay what EC2 asked for a capacity block in December 2024"
    )
    parser.add_argument("--search", action="store_true", help="the best layouts over all kinds of parallelism")
    parser.add_argument("--minimum", action="store_true", help="the fewest machines of each type that hold --model")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the roofline as a picture")
    parser.add_argument("--batch", type=Path, metavar="rows.csv", help="predict every row of a table; needs --out")
    parser.add_argument("--out", type=Path, metavar="predictions.csv", help="where the table with predictions goes")
