"""The dry run of a large job."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.memory import Memory
from podwright.planning.run_plan import Plan
from podwright.planning.trainer_run import plan_run
from podwright_testing.traffic import traffic
from podwright_testing.training_documents import as_described
from podwright_training.config import sources
from podwright_training.config.memory_checkpoints import STATE_BYTES
from podwright_training.dry_run.device_memory import ACTIVATIONS, COMMUNICATION, GRADIENTS, LOGITS, WEIGHTS, WORKING

LIMIT_S = 4000  # of all dry runs: minutes of one core, and tests share two
pytestmark = [pytest.mark.timeout(LIMIT_S), pytest.mark.slow]

SIZES = (
    "--num-layers 4 --hidden-width 256 --num-heads 8 --num-key-value-heads 4 --intermediate-size 512 "
    "--vocab-size 1536 --max-context-width 128 --train-batch-size 4"
)
BLOCK_MATRICES = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
BLOCK_NORMS, NORM = 2 * 256, 256
EMBEDDING = 1536 * 256
MEGABYTE = 1_000_000
GROUPS = 4 + 3  # blocks, embedding, head, and the norm between them
TWO_STAGES = "--pipeline-parallel 2 --train-batch-size 2"
RUNS = {
    "sharded": f"--world-size 512 {SIZES}",
    "accumulating": f"--world-size 512 {SIZES} --gradient-accumulation-steps 3",
    "tensor": f"--world-size 512 {SIZES} --tensor-parallel 4",
    "tensor, float8": f"--world-size 512 {SIZES} --tensor-parallel 4 --float8",
    "context": f"--world-size 512 {SIZES} --context-parallel 2",
    "offloaded": f"--world-size 512 {SIZES} --cpu-offload",
    "hybrid": f"--world-size 16 {SIZES} --sharding-strategy hybrid",
    "pipeline": f"--world-size 512 {SIZES} --pipeline-parallel 4",
    "pipeline of tensor": f"--world-size 16 {SIZES} --pipeline-parallel 2 --tensor-parallel 4",
    "pipeline, interleaved": f"--world-size 16 {SIZES} {TWO_STAGES} --pipeline-schedule interleaved_1f1b",
    "pipeline, zero bubble": f"--world-size 16 {SIZES} {TWO_STAGES} --pipeline-schedule zero_bubble",
    "pipeline, hybrid": f"--world-size 32 {SIZES} {TWO_STAGES} --sharding-strategy hybrid",
    "selective": f"--world-size 512 {SIZES} --activation-checkpointing-mode selective",
    "documents": f"--world-size 512 {SIZES} --document-mask",
    "documents, all pairs": f"--world-size 512 {SIZES} --document-mask --attention sdpa",
    "experts": "--world-size 16 --preset tiny_moe --precision bf16 --expert-parallel 2",
    "experts, compiled": "--world-size 16 --preset tiny_moe --precision bf16 --expert-parallel 2 "
    "--activation-checkpointing",
    "compiled": f"--world-size 512 {SIZES}",
    "compiled, tensor": f"--world-size 512 {SIZES} --tensor-parallel 4",
    "compiled, pipeline": f"--world-size 16 {SIZES} --pipeline-parallel 2",
    "muon": "--world-size 64 --preset llama3_1_8b --num-layers 1 --train-batch-size 1 --optimizer muon",
    "too-large": f"--world-size 512 {SIZES} --memory-gb 0.001",
}
PLANNED = {
    "8B": "--train-batch-size 2",
    "8B, selective": "--train-batch-size 2 --activation-checkpointing-mode selective",
    "8B, nothing again": "--train-batch-size 1 --no-activation-checkpointing",
    "8B, pipeline": "--train-batch-size 4 --pipeline-parallel 2",
    "8B, pipeline, whole gradients": "--train-batch-size 4 --pipeline-parallel 2 --accumulated-gradients whole",
    "8B, pipeline, interleaved": "--train-batch-size 4 --pipeline-parallel 2 --num-layers 4 "
    "--pipeline-schedule interleaved_1f1b",
    "8B, pipeline, zero bubble": "--train-batch-size 4 --pipeline-parallel 2 --num-layers 4 "
    "--pipeline-schedule zero_bubble",
    "8B, pipeline, zero bubble in a V": "--train-batch-size 4 --pipeline-parallel 2 --num-layers 4 "
    "--pipeline-schedule zero_bubble_v",
    "8B, pipeline, zero bubble, nothing again": "--train-batch-size 4 --pipeline-parallel 2 --num-layers 4 "
    "--pipeline-schedule zero_bubble --no-activation-checkpointing",
    "8B, float8": "--train-batch-size 2 --float8",
    "8B, float8, nothing again": "--train-batch-size 1 --float8 --no-activation-checkpointing",
    "8B, tensor": "--train-batch-size 2 --tensor-parallel 8",
    "8B, hybrid": "--train-batch-size 2 --sharding-strategy hybrid",
    "8B, pipeline, gathered again": "--train-batch-size 4 --pipeline-parallel 2 --reshard-after-forward always",
    "8B, pipeline and tensor, selective": "--train-batch-size 4 --pipeline-parallel 2 --tensor-parallel 4 "
    "--activation-checkpointing-mode selective --accumulated-gradients whole",
    "1B, pipeline, tied": "--preset llama3_2_1b --num-layers 2 --train-batch-size 4 --pipeline-parallel 2",
    "8B, context and tensor": "--train-batch-size 1 --context-parallel 2 --tensor-parallel 2",
    "8B, context, accumulating": "--train-batch-size 1 --context-parallel 2 --gradient-accumulation-steps 2",
}
PLANNED = {name: f"--preset llama3_1_8b --num-layers 2 {flags}" for name, flags in PLANNED.items()}
MIXTURE = "--preset mixtral_8x7b --num-layers 2 --train-batch-size 1 --expert-parallel 8"
PLANNED["mixture"] = MIXTURE
RUNS |= {name: f"--world-size 64 {flags}" for name, flags in PLANNED.items()}
V_OF_FOUR = "--train-batch-size 8 --pipeline-parallel 4 --pipeline-schedule zero_bubble_v"
V_OF_FOUR = f"--preset llama3_1_8b --num-layers 8 {V_OF_FOUR}"
RUNS["V of four"] = f"--world-size 64 {V_OF_FOUR}"
# Runs are compiled by default. What others show does not depend on it, and capturing graphs takes time.
RUNS |= {name: f"{flags} --no-compile" for name, flags in RUNS.items() if "compiled" not in name}
# One process for all, as importing torch takes seconds.
SCRIPT = """
import contextlib, io, json, sys
from podwright_training.__main__ import main
results = {}
for name, flags in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["dry-run", "--json", *flags.split()])
    results[name] = {"status": status, **json.loads(printed.getvalue())}
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(RUNS), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for result in found.values():
        as_described("dry-run", {key: value for key, value in result.items() if key != "status"})
    return found


def _rank(results: dict[str, Any], name: str, index: int = 0) -> dict[str, Any]:
    rank: dict[str, Any] = results[name]["ranks"][index]
    return rank


def _peak(results: dict[str, Any], name: str) -> int:
    peak: int = _rank(results, name)["peak_bytes"]
    return peak


def _traffic(rank: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    return {(row["kind"], row["dimension"]): (row["calls"], row["size_bytes"]) for row in rank["collectives"]}


def test_a_rank_holds_its_shards_in_fp32_and_two_moments_of_each(results: dict[str, Any]) -> None:
    """Weights take 4 bytes per parameter of the rank's shards, Adam's moments twice that and a step per tensor."""
    for name in ("sharded", "tensor", "context", "hybrid"):
        rank = _rank(results, name)
        assert rank["memory_bytes"][WEIGHTS] == 4 * rank["parameters"]
        assert rank["memory_bytes"]["optimizer states"] - 8 * rank["parameters"] < 1000
        assert rank["saved_bytes"] - STATE_BYTES * rank["parameters"] < 1000


def test_what_the_host_keeps_is_saved_too(results: dict[str, Any]) -> None:
    """With offloading the device holds neither weights nor moments, and a checkpoint has all of them."""
    here, offloaded = _rank(results, "sharded"), _rank(results, "offloaded")
    assert offloaded["memory_bytes"][WEIGHTS] == offloaded["memory_bytes"]["optimizer states"] == 0
    assert offloaded["saved_bytes"] == here["saved_bytes"] >= STATE_BYTES * here["parameters"]


def test_weights_are_gathered_once_in_bf16_and_gradients_reduced_in_fp32(results: dict[str, Any]) -> None:
    """A small model's all-gathers carry 2 bytes per parameter of the model, its reduce-scatters 4."""
    traffic = _traffic(_rank(results, "hybrid"))
    parameters = 4 * (BLOCK_MATRICES + BLOCK_NORMS) + 2 * EMBEDDING + NORM
    assert traffic["all-gather", "shard"] == (GROUPS, 2 * parameters)
    assert traffic["reduce-scatter", "shard"] == (GROUPS, 4 * parameters)
    assert traffic["all-reduce", "replicate"] == (GROUPS, 4 * parameters // 8)


def test_ranks_of_tensor_parallelism_gather_their_part_of_the_vocabulary(results: dict[str, Any]) -> None:
    """Of matrices, embedding and head, each of four gathers its own quarter; norms are whole."""
    stage = (2 * BLOCK_MATRICES + EMBEDDING) // 4 + 2 * BLOCK_NORMS
    for rank, parameters in enumerate((stage, stage + NORM)):
        traffic = _traffic(_rank(results, "pipeline of tensor", rank))
        assert traffic["all-gather", "shard"][1] == 2 * parameters


def test_each_micro_batch_gathers_and_reduces_again(results: dict[str, Any]) -> None:
    """Three micro-batches with sharded gradients send three times as much as one."""
    one, three = (_traffic(_rank(results, name)) for name in ("sharded", "accumulating"))
    for kind in ("all-gather", "reduce-scatter"):
        assert three[kind, "shard"] == tuple(3 * value for value in one[kind, "shard"])


@pytest.mark.parametrize(
    ("name", "whole", "micro_batches"),
    [("8B, pipeline", "8B, pipeline, whole gradients", 4), ("pipeline, interleaved", "pipeline, zero bubble", 2)],
)
def test_a_pipeline_reduces_the_gradient_of_each_micro_batch(
    results: dict[str, Any], name: str, whole: str, micro_batches: int
) -> None:
    """It sends as many times what is sent of whole gradients, or by a schedule that splits the backward pass."""
    often, once = (_traffic(_rank(results, each)) for each in (name, whole))
    assert often["reduce-scatter", "shard"] == tuple(micro_batches * value for value in once["reduce-scatter", "shard"])
    assert often["all-gather", "shard"] == once["all-gather", "shard"]


def test_replicas_of_a_pipeline_add_up_their_gradients_once(results: dict[str, Any]) -> None:
    """The shards of each gradient are summed over the two nodes after the last of two micro-batches."""
    rank = _rank(results, "pipeline, hybrid")
    traffic = _traffic(rank)
    assert traffic["all-reduce", "replicate"] == (traffic["reduce-scatter", "shard"][0] // 2, 4 * rank["parameters"])


def test_a_pipeline_keeps_a_shard_of_its_gradients(results: dict[str, Any]) -> None:
    """At the peak of its first stage there are 4 bytes for each of the rank's own parameters; whole, 32 times more."""
    rank, whole = (_rank(results, f"8B, pipeline{name}") for name in ("", ", whole gradients"))
    assert rank["memory_bytes"][GRADIENTS] == pytest.approx(4 * rank["parameters"], rel=0.01)
    shards, buffer = 32, rank["memory_bytes"][COMMUNICATION]
    more = whole["peak_bytes"] - rank["peak_bytes"] + buffer
    assert more == pytest.approx(4 * (shards - 1) * rank["parameters"], rel=0.1)


def test_what_muon_exchanges_is_counted(results: dict[str, Any]) -> None:
    """Ranks that have rows of the seven matrices of a block exchange them for columns, to multiply whole ones."""
    calls, size = _traffic(_rank(results, "muon"))["all-to-all", "shard"]
    assert calls >= 7
    assert size > 2 * 7 * 1024 * 4096 / 64  # in bf16, of the smallest


def test_tensor_parallelism_divides_the_work(results: dict[str, Any]) -> None:
    """Four ranks of tensor parallelism each compute a quarter, and communicate along their own dimension."""
    whole, quarter = _rank(results, "sharded"), _rank(results, "tensor")
    assert quarter["flops"] == pytest.approx(whole["flops"] / 4, rel=0.01)
    assert {"all-gather", "reduce-scatter"} <= {kind for kind, dimension in _traffic(quarter) if dimension == "tensor"}


def test_float8_sends_the_same_and_repeats_the_last_product_of_a_block(results: dict[str, Any]) -> None:
    """Weights are gathered in bf16; recomputation of each of four blocks computes its last product once more."""
    plain, float8 = _rank(results, "tensor"), _rank(results, "tensor, float8")
    assert float8["flops"] - plain["flops"] == 4 * 2 * (4 * 128) * 512 * 256 // 4
    assert float8["kernels"]["matrix products"] - plain["kernels"]["matrix products"] == 4
    assert _traffic(float8) == _traffic(plain)


def test_matrix_products_agree_with_the_model_and_its_recomputation(results: dict[str, Any]) -> None:
    """Full recomputation computes between the model's operations and four thirds of them."""
    assert 1 < _rank(results, "sharded")["flops"] / results["sharded"]["model_flops"] < 4 / 3


def test_selective_recomputation_keeps_more_and_computes_less(results: dict[str, Any]) -> None:
    """Keeping matrix products costs memory for activations and saves operations."""
    full, selective = _rank(results, "sharded"), _rank(results, "selective")
    assert selective["memory_bytes"][ACTIVATIONS] > 2 * full["memory_bytes"][ACTIVATIONS]
    assert selective["flops"] < full["flops"]


def test_documents_make_no_mask_of_all_pairs(results: dict[str, Any]) -> None:
    """By default a GPU keeps no mask of documents that grows with the square of the context."""
    plain, blocks, pairs = (_peak(results, name) for name in ("sharded", "documents", "documents, all pairs"))
    assert blocks - plain < pairs - plain > 4 * 128**2  # of four sequences


def test_nothing_waits_for_the_device_but_experts(results: dict[str, Any]) -> None:
    """Only the exchange between experts reads numbers from the device: how many rows go where."""
    for name in set(RUNS) - {"experts", "experts, compiled", "mixture"}:
        assert all(rank["waits"] == {} for rank in results[name]["ranks"]), name
    assert {line.partition(":")[0] for line in _rank(results, "experts")["waits"]} == {"parallel/expert.py"}


@pytest.mark.parametrize("name", [name for name in PLANNED if "pipeline" not in name and name != "mixture"])
def test_the_planner_counts_the_same(results: dict[str, Any], name: str) -> None:
    """Of layers of 8B, states and gathered weights agree within 3 %, what is kept and the loss within 10 %."""
    planned = _planned(name)
    counted = {item: size / 1e9 for item, size in _rank(results, name)["memory_bytes"].items()}
    assert planned.parameters == pytest.approx(counted[WEIGHTS], rel=0.03)
    assert planned.optimizer == pytest.approx(counted["optimizer states"], rel=0.03)
    assert planned.gathered_parameters == pytest.approx(counted["gathered weights"], rel=0.03)
    assert planned.activations == pytest.approx(counted[ACTIVATIONS], rel=0.1)
    assert planned.logits == pytest.approx(counted[LOGITS] + counted[WORKING], rel=0.1)


@pytest.mark.parametrize("name", [name for name in PLANNED if "pipeline" in name])
def test_the_planner_knows_what_a_pipeline_keeps_whole(results: dict[str, Any], name: str) -> None:
    """Weights stay gathered until the last micro-batch, and gradients where asked: the peak is within 10 %."""
    planned = _planned(name)
    rank = max(results[name]["ranks"], key=lambda each: each["peak_bytes"])
    tensors_gb = planned.peak_gb - planned.fragmentation - planned.communication_and_context  # what a dry run counts
    assert tensors_gb * 1e9 == pytest.approx(rank["peak_bytes"], rel=0.1)
    gathered = rank["memory_bytes"]["gathered weights"] + rank["memory_bytes"][COMMUNICATION]
    assert planned.gathered_parameters * 1e9 == pytest.approx(gathered, rel=0.03)


def test_the_tip_of_a_v_keeps_most(results: dict[str, Any]) -> None:
    """Its rank has neither embedding nor head, and yet the peak, which the plan has within 10 %."""
    ranks = results["V of four"]["ranks"]
    assert [rank["kind"] for rank in ranks] == ["first and last stage", "middle stages", "innermost stages"]
    assert max(ranks, key=lambda rank: rank["peak_bytes"]) is ranks[-1]
    planned = _plan_of(V_OF_FOUR).memory
    tensors_gb = planned.peak_gb - planned.fragmentation - planned.communication_and_context
    assert tensors_gb * 1e9 == pytest.approx(ranks[-1]["peak_bytes"], rel=0.1)
    assert planned.gradients * 1e9 == pytest.approx(4 * 16 * ranks[-1]["parameters"], rel=0.03)


@pytest.mark.parametrize("name", PLANNED)
def test_the_planner_counts_the_same_traffic(results: dict[str, Any], name: str) -> None:
    """Each kind of collective along each dimension, of a megabyte or more, has within 3 % as many bytes."""
    plan, ranks = _plan(name), results[name]["ranks"]
    assert len(ranks) == plan.layout.pipeline
    for place, rank in enumerate(ranks):
        counted = {key: size for key, (_, size) in _traffic(rank).items() if size > MEGABYTE}
        planned = traffic(plan.model, plan.layout, rank=place)
        assert {key: size for key, size in planned.items() if size > MEGABYTE} == pytest.approx(counted, rel=0.03)


def test_the_planner_counts_a_mixture(results: dict[str, Any]) -> None:
    """Each of eight ranks holds an eighth of the experts; states agree within 3 %, the rest of the peak within 10 %."""
    planned, rank = _planned("mixture"), _rank(results, "mixture")
    counted = {item: size / 1e9 for item, size in rank["memory_bytes"].items()}
    assert planned.parameters == pytest.approx(counted[WEIGHTS], rel=0.03)
    assert planned.optimizer == pytest.approx(counted["optimizer states"], rel=0.03)
    rest = rank["peak_bytes"] / 1e9 - counted[WEIGHTS] - counted["optimizer states"]
    assert planned.gathered_parameters + planned.activations + planned.logits == pytest.approx(rest, rel=0.1)


def _planned(name: str) -> Memory:
    return _plan(name).memory


def _plan(name: str) -> Plan:
    return _plan_of(PLANNED[name])


def _plan_of(flags: str) -> Plan:
    parser = argparse.ArgumentParser()
    sources.add_arguments(parser)
    options = sources.load(parser.parse_args(flags.split()))
    return plan_run(options, Hardware(instance_type="ml.p5.48xlarge", nodes=8))


def test_each_kind_of_pipeline_rank_runs(results: dict[str, Any]) -> None:
    """First, middle and last stage run; only the last computes logits, and the ends have fewer neighbours."""
    first, middle, last = results["pipeline"]["ranks"]
    assert [rank["kind"] for rank in (first, middle, last)] == ["first stage", "middle stages", "last stage"]
    assert first["flops"] == middle["flops"] < last["flops"]
    assert [_traffic(rank)["send", "pipeline"][0] for rank in (first, middle, last)] == [4, 8, 4]


def test_a_peak_above_the_memory_is_a_finding(results: dict[str, Any]) -> None:
    """The command exits with 1 if the peak exceeds --memory-gb, else with 0."""
    assert {name: results[name]["status"] for name in ("sharded", "too-large")} == {"sharded": 0, "too-large": 1}


def test_a_peak_above_the_memory_names_what_to_do(results: dict[str, Any]) -> None:
    """A finding names the rank, its peak, what takes most of it, and an option; without one there is none."""
    (finding,) = results["too-large"]["findings"]
    assert re.match(r"out of memory: the peak of all ranks is 0\.0\d+ GB of 0\.001, 0\.01\d+ of it gathered", finding)
    assert finding.endswith("use more tensor_parallel")
    assert results["sharded"]["findings"] == []


def test_graphs_breaks_and_repetitions_of_the_compiler_are_counted(results: dict[str, Any]) -> None:
    """By default blocks share a graph, the loss has one or two; nothing breaks them; memory is an eager step's."""
    for name in ("compiled", "compiled, tensor", "compiled, pipeline"):
        compilation = _rank(results, name)["compilation"]
        assert 1 <= compilation["graphs"] <= 4
        assert compilation["breaks"] == {}
        assert sum(compilation["recompiles"].values()) <= 1
    assert _rank(results, "compiled")["memory_bytes"] == _rank(results, "sharded")["memory_bytes"]
    assert _rank(results, "sharded")["compilation"]["graphs"] == 0


def test_a_mixture_is_compiled_without_breaks_and_waits_once_per_block(results: dict[str, Any]) -> None:
    """Four blocks wait four times, as their recomputation remembers the numbers of rows; no graph breaks."""
    rank = _rank(results, "experts, compiled")
    assert sum(rank["waits"].values()) == 4
    assert rank["compilation"]["breaks"] == rank["compilation"]["recompiles"] == {}
