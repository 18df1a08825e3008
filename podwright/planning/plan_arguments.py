"""Define the arguments of ``podwright plan``. It has no heavy imports, because every podwright command reads it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``podwright plan``. Quantities may carry units (78B, 5k, 7d)."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="cluster.yaml",
        help="read instance type and node count from its compute group",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="run.yaml",
        help="read model, batch, options and steps from a run of podwright-train",
    )
    parser.add_argument("--model", metavar="NAME", help="name of a published model, such as llama3_2_1b or Qwen3-8B")
    parser.add_argument("--instance", metavar="TYPE", help="instance type, such as ml.g5.12xlarge")
    parser.add_argument("--nodes", metavar="N", help="number of nodes. Default: 1")
    parser.add_argument("--seq-len", metavar="TOKENS", help="tokens per sequence. Default: 2048")
    parser.add_argument(
        "--micro-batch", metavar="N", help="sequences per GPU and micro-batch. Default: the largest that fits"
    )
    parser.add_argument(
        "--accumulate", metavar="N", help="micro-batches per step. Default: a step of about a million tokens"
    )
    parser.add_argument(
        "--recompute",
        choices=("none", "selective", "full"),
        help="activation recomputation. Default: the least that fits",
    )
    parser.add_argument("--offload-activations", action="store_true", help="keep the inputs of blocks in host memory")
    parser.add_argument("--offload-optimizer", action="store_true", help="keep the optimizer's states in host memory")
    parser.add_argument("--hybrid", action="store_true", help="shard within a node and replicate across nodes (HSDP)")
    parser.add_argument("--precision", choices=("bf16", "fp8"), help="precision of matrix products. Default: bf16")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), help="optimizer. Default: adamw")
    parser.add_argument("--tokens", metavar="N", help="tokens of the whole run, such as 78B. Adds time, cost and loss")
    parser.add_argument("--dataset", metavar="NAME", help="dataset of the command to run. Default: podwright-train's")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="tokenizer of the command to run. Default: podwright-train's"
    )
    parser.add_argument(
        "--serve", metavar="N", help="tokens the model will serve. Adds the cheapest size with the same loss"
    )
    parser.add_argument(
        "--curve", type=Path, metavar="metrics.jsonl", help="forecast the loss at --tokens from the loss curve of a run"
    )
    parser.add_argument(
        "--budget", metavar="USD", help="find the largest model, or the cluster for --model, within this budget"
    )
    parser.add_argument("--deadline", metavar="TIME", help="finish within this time, such as 7d")
    parser.add_argument(
        "--usd-per-hour",
        metavar="USD",
        help="price of one node, such as in your training plan or capacity block",
    )
    parser.add_argument(
        "--region", metavar="REGION", help="use this region's prices. Default: cluster.yaml's region, else us-east-1"
    )
    parser.add_argument(
        "--capacity-block", action="store_true", help="use EC2's capacity block prices of December 2024"
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="validate.json",
        help="use the network that `podwright validate --output` measured. Default: the instance type's",
    )
    parser.add_argument(
        "--search", action="store_true", help="search for the best layout over all kinds of parallelism"
    )
    parser.add_argument(
        "--minimum", action="store_true", help="find the fewest nodes of each instance type that hold --model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the roofline as an SVG")
    parser.add_argument(
        "--nxdt",
        type=Path,
        metavar="run.json",
        help="print the memory of a run of NxD Training as JSON; podwright-train launch writes the file",
    )
