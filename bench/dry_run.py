"""Print the dry run of large jobs beside the plan of each: the tables of ``docs/dry_run.md``.

    python bench/dry_run.py [--compile] [JOB …]

Smallest: python bench/dry_run.py "8B on 64, TP 8"

One rank of each kind of a job takes a step on tensors without values. A line is the rank with the highest peak.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from typing import Any

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.memory import Memory
from podwright.planning.trainer_run import plan_run
from podwright_training.__main__ import main as podwright_train
from podwright_training.config import sources

NODE = 8  # ranks
LLAMA_8B = "--preset llama3_1_8b --world-size 64"
LLAMA_70B = "--preset llama3_1_70b --world-size 256 --train-batch-size 1"
LIKE_405B = (
    "--preset llama3_1_70b --hidden-size 16384 --intermediate-size 53248 --num-layers 126 --num-heads 128 "
    "--num-key-value-heads 8 --world-size 512"
)
PIPELINE_70B = f"{LLAMA_70B} --train-batch-size 8 --tensor-parallel 8 --pipeline-parallel 4"
PIPELINE_405B = f"{LIKE_405B} --train-batch-size 16 --tensor-parallel 8 --pipeline-parallel 8"
WHOLE = "--accumulated-gradients whole"
MIXTRAL = "--preset mixtral_8x7b --world-size 64 --train-batch-size 2"
JOBS = {
    "8B on 64, FSDP": f"{LLAMA_8B} --train-batch-size 2",
    "8B on 64, nothing recomputed": f"{LLAMA_8B} --train-batch-size 1 --no-activation-checkpointing",
    "8B on 64, selective": f"{LLAMA_8B} --train-batch-size 2 --activation-checkpointing-mode selective",
    "8B on 64, hybrid": f"{LLAMA_8B} --train-batch-size 2 --sharding-strategy hybrid",
    "8B on 64, TP 8": f"{LLAMA_8B} --train-batch-size 2 --tensor-parallel 8",
    "8B on 64, CP 8": f"{LLAMA_8B} --train-batch-size 1 --context-parallel 8",
    "8B on 64, PP 4": f"{LLAMA_8B} --train-batch-size 8 --pipeline-parallel 4",
    "8B on 64, PP 4, whole": f"{LLAMA_8B} --train-batch-size 8 --pipeline-parallel 4 {WHOLE}",
    "8B on 64, FSDP, 4 micro-batches": f"{LLAMA_8B} --train-batch-size 2 --gradient-accumulation-steps 4",
    "8B on 64, PP 4, zero_bubble_v": f"{LLAMA_8B} --train-batch-size 8 --pipeline-parallel 4 "
    "--pipeline-schedule zero_bubble_v",
    "Mixtral on 64, FSDP": MIXTRAL,
    "Mixtral on 64, EP 8": f"{MIXTRAL} --expert-parallel 8",
    "70B on 256, TP 8": f"{LLAMA_70B} --tensor-parallel 8",
    "70B on 256, FSDP": LLAMA_70B,
    "70B on 256, TP 8, CP 2": f"{LLAMA_70B} --tensor-parallel 8 --context-parallel 2",
    "70B on 256, TP 8, PP 4": PIPELINE_70B,
    "70B on 256, TP 8, PP 4, whole": f"{PIPELINE_70B} {WHOLE}",
    "405B-like on 512, TP 8": f"{LIKE_405B} --train-batch-size 1 --tensor-parallel 8",
    "405B-like on 512, TP 8, CP 4": f"{LIKE_405B} --train-batch-size 1 --tensor-parallel 8 --context-parallel 4",
    "405B-like on 512, TP 8, PP 2": f"{LIKE_405B} --train-batch-size 4 --tensor-parallel 8 --pipeline-parallel 2",
    "405B-like on 512, TP 8, PP 8": PIPELINE_405B,
    "405B-like on 512, TP 8, PP 8, whole": f"{PIPELINE_405B} {WHOLE}",
}
MEMORY = {  # titles: categories of the dry run
    "states": ("weights", "optimizer states"),
    "gathered": ("gathered weights",),
    "activations": ("activations",),
    "logits": ("logits",),
    "working": ("gradients", "communication buffers", "working memory"),
}


def main() -> None:
    """Print a line per job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="capture graphs; count breaks and recompilations")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"Default: all of {', '.join(JOBS)}.")
    args = parser.parse_args()
    if unknown := sorted(set(args.jobs) - set(JOBS)):
        parser.error(f"got {', '.join(unknown)}, need {', '.join(JOBS)}")
    titles = [*MEMORY, "peak, GB", "plan", "FSDP, GB", "TP, GB", "other, GB", "collectives", "kernels", "waits"]
    print(f"| job | {' | '.join([*titles, *(['breaks, again'] if args.compile else [])])} |")
    print(f"|---|{'---|' * (len(titles) + args.compile)}")
    for name in args.jobs or JOBS:
        flags = [*JOBS[name].split(), "--compile" if args.compile else "--no-compile"]
        rank = max(_dry_run(flags), key=lambda each: each["peak_bytes"])
        print(f"| {name} | {' | '.join(_cells(rank, _planned(flags), compiled=args.compile))} |", flush=True)


def _cells(rank: dict[str, Any], planned: Memory, *, compiled: bool) -> list[str]:
    cells = [f"{_gb(sum(rank['memory_bytes'][each] for each in names))}" for names in MEMORY.values()]
    cells += [_gb(rank["peak_bytes"]), f"{planned.peak_gb:.1f}"]
    traffic = {"shard": 0, "tensor": 0, "other": 0}
    for item in rank["collectives"]:
        traffic[item["dimension"] if item["dimension"] in traffic else "other"] += item["size_bytes"]
    cells += [_gb(size) for size in traffic.values()]
    cells += [f"{sum(item['calls'] for item in rank['collectives']):,}", f"{sum(rank['kernels'].values()):,}"]
    cells.append(str(sum(rank["waits"].values())))
    if compiled:
        found = rank["compilation"]
        cells.append(f"{sum(found['breaks'].values())}, {sum(found['recompiles'].values())}")
    return cells


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


def _dry_run(flags: list[str]) -> list[dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        podwright_train(["dry-run", "--json", *flags])
    ranks: list[dict[str, Any]] = json.loads(printed.getvalue())["ranks"]
    return ranks


def _planned(flags: list[str]) -> Memory:
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int)
    sources.add_arguments(parser)
    args = parser.parse_args(flags)
    return plan_run(sources.load(args), Hardware(instance_type="ml.p5.48xlarge", nodes=args.world_size // NODE)).memory


if __name__ == "__main__":
    main()
