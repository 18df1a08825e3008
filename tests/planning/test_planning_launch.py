"""The command that a plan prints is the run that was planned."""

import argparse
from dataclasses import replace

import pytest

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.launch import LaunchInputs, command, obstacles
from podwright.planning.layout import Layout, LayoutError, check
from podwright.planning.model import Model, model_names
from podwright.planning.run_plan import make_plan
from podwright.planning.search import layouts
from podwright.planning.trainer_run import arguments, model_of, plan_run, total_tokens
from podwright.planning.trainer_software import Software
from podwright_training.config import parallel_dims, sources

NODES = Hardware(instance_type="ml.p5.48xlarge", nodes=4)
DATA = LaunchInputs(dataset="data", tokenizer="data/tokenizer")


def configured(words):
    """The configuration that the trainer reads from a command."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sources.add_arguments(parser)
    split = words.index("--")
    preset = [word for word in words[:split] if word.startswith("--preset=")]
    args, args.unknown_words = parser.parse_known_args([*preset, *words[split + 1 :]])
    return sources.load(args)


def test_every_model_is_the_one_that_was_planned():
    """For each published model that the trainer has, the flags give its parameters, layout, tokens and data."""
    given = {}
    for name in model_names():
        model = Model.of(name)
        plan = make_plan(model, NODES, sequence=2048, tokens=1e9, recompute="full", micro_batch=1)
        if obstacles(plan, DATA):
            continue
        words = command(plan, DATA)
        config = configured(words)
        given[name] = words[2]
        assert config.model.parameters == model.parameters
        assert total_tokens(config, NODES) >= 1e9
        assert (config.dataset, config.tokenizer) == ("data", "data/tokenizer")
        again = make_plan(model, NODES, tokens=1e9, **arguments(config, NODES))
        assert again.layout == plan.layout
    assert given["llama3_2_1b"] == "--preset=llama3_2_1b"
    assert given["qwen3_14b"] == "--run-dir=runs/qwen3_14b"
    assert len(given) > 20


def test_a_run_is_started_from_its_file(tmp_path):
    """The command names run.yaml, and flags for what the plan changes."""
    path = tmp_path / "run.yaml"
    path.write_text("preset: llama3_2_1b\ntrain_batch_size: 1\nmax_steps: 70\nbf16: false\nrun_dir: runs/a\n")
    run = sources.load_file(path)
    unchanged = make_plan(model_of(run), NODES, tokens=total_tokens(run, NODES), **arguments(run, NODES))
    words = command(unchanged, LaunchInputs(run=(path, run)))
    assert words == ["podwright-train", "launch", "--run-dir=runs/a", "--nodes=4", "--", f"--config={path}"]
    changed = make_plan(model_of(run), NODES, **{**arguments(run, NODES), "precision": "bf16", "micro_batch": 2})
    assert command(changed, LaunchInputs(run=(path, run)))[6:] == ["--train-batch-size=2", "--precision=bf16"]


def test_a_runs_global_batch_is_kept_where_the_layout_holds_it(tmp_path):
    """A layout of as many micro-batches gets no flag; one of another batch sets it, and nothing per rank."""
    path = tmp_path / "run.yaml"
    path.write_text("preset: llama3_2_1b\ntrain_batch_size: 1\nmax_steps: 70\nrun_dir: a\nglobal_batch_size: 60\n")
    run = sources.load_file(path)
    given = arguments(run, NODES)
    assert given["micro_batches"] == -(-60 // NODES.gpus)
    same = make_plan(model_of(run), NODES, tokens=total_tokens(run, NODES), **given)
    assert command(same, LaunchInputs(run=(path, run)))[6:] == []
    other = make_plan(model_of(run), NODES, tokens=1e9, **{**given, "micro_batches": 5})
    assert command(other, LaunchInputs(run=(path, run)))[6] == f"--global-batch-size={5 * NODES.gpus}"


@pytest.mark.parametrize("schedule", ["zero_bubble", "zero_bubble_v"])
def test_a_schedule_that_splits_the_backward_pass_is_kept(tmp_path, schedule):
    """The layout of a run has its schedule, so its command has no flag of it; that of the model alone gives it."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "preset: llama3_1_8b\ntrain_batch_size: 4\nmax_steps: 70\nrun_dir: a\n"
        f"pipeline_parallel: 2\npipeline_schedule: {schedule}\n"
    )
    run = sources.load_file(path)
    plan = plan_run(run, NODES)
    assert plan.layout.schedule == schedule
    assert command(plan, LaunchInputs(run=(path, run)))[6:] == ["--pipeline-micro-batches=4"]
    assert f"--pipeline-schedule={schedule}" in command(plan, LaunchInputs())


@pytest.mark.parametrize(
    ("own", "changed", "words"),
    [
        ("precision: fp16", {}, []),
        ("float8: true", {}, []),
        ("float8: true", {"precision": "bf16"}, ["--no-float8"]),
        ("activation_checkpointing_mode: budget\ncompile: true", {}, []),
        ("activation_checkpointing_mode: selective", {}, []),
        ("activation_checkpointing_mode: selective", {"recompute": "full"}, ["--activation-checkpointing-mode=full"]),
        ("cpu_offload: true", {}, []),
        ("loss_chunk_tokens: 0", {}, []),
        ("model_type: glm4_moe\nnum_local_experts: 8\nn_shared_experts: 1", {}, []),
    ],
)
def test_what_a_plan_does_not_change_stays_as_the_run_has_it(tmp_path, own, changed, words):
    """A run that is planned as it is gets no flag, also of what a plan counts as something like it."""
    path = tmp_path / "run.yaml"
    shape = "vocab_size: 51200\nhidden_size: 1024\nintermediate_size: 2816\nnum_heads: 16\n"
    path.write_text(f"{shape}max_steps: 9\nrun_dir: a\n{own}\n")
    run = sources.load_file(path)
    plan = make_plan(model_of(run), NODES, **{"tokens": total_tokens(run, NODES), **arguments(run, NODES), **changed})
    assert obstacles(plan, LaunchInputs(run=(path, run))) == []
    assert command(plan, LaunchInputs(run=(path, run)))[6:] == words


@pytest.mark.parametrize(
    "own",
    [
        "tensor_parallel: 2\nasync_tensor_parallel: true\ncompile: true\nactivation_checkpointing_mode: selective",
        "sharding_strategy: hybrid\ndata_replicas: 4\nloss_chunk_tokens: 0\noffload_activations: true",
        "pipeline_parallel: 4\npipeline_schedule: interleaved_1f1b\npipeline_stages_per_rank: 4\ntrain_batch_size: 8",
        "global_batch_size: 128\ncpu_offload: true\nprecision: fp16\noptimizer: muon",
    ],
)
def test_any_layout_of_a_search_can_be_made_of_a_run(tmp_path, own):
    """Whatever the run sets, its file and the flags of the command give each layout, the step's batch and the rest."""
    path = tmp_path / "run.yaml"
    path.write_text(f"preset: llama3_2_1b\nmax_steps: 70\nrun_dir: a\n{own}\n")
    run = sources.load_file(path)
    plan = plan_run(run, NODES)
    found = layouts(
        plan.model, NODES.accelerator, Software.named("podwright"), gpus=NODES.gpus, sequence=plan.layout.sequence,
        global_batch=plan.layout.global_batch, optimizer=plan.layout.optimizer, run=run,
    )  # fmt: skip
    supported = [item for item in found if item.supported]
    assert len({(item.layout.tensor, item.layout.pipeline, item.layout.recompute) for item in supported}) > 3
    for item in supported:
        laid_out = plan.laid_out_as(item)
        config = configured(command(laid_out, LaunchInputs(run=(path, run))))
        assert list(parallel_dims.problems(config, world_size=NODES.gpus, nodes=NODES.nodes)) == []
        again = plan_run(config, NODES)
        sharding = {"sharding": item.layout.sharding, "whole_gradients": item.layout.whole_gradients}
        assert replace(again.layout, **sharding) == item.layout
        assert config.batch_sequences(again.layout.data) == run.batch_sequences(plan.layout.data)
        assert (config.compute_precision, config.optimizer) == (run.compute_precision, run.optimizer)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("llama3_1_70b", {"micro_batch": 64, "recompute": "none"}, "GB per GPU, an H100-80GB has 84.0: use"),
        ("llama2_7b", {}, "the model has 32,000 tokens, the default tokenizer EleutherAI/gpt-neox-20b 50,277: name"),
        ("llama3_2_1b", {"offload_optimizer": True}, "podwright-train does not support offloading the optimizer alone"),
    ],
)
def test_what_cannot_run_has_reasons_for_it(name, options, reason):
    """Without memory, support or a fitting tokenizer there is no command."""
    plan = make_plan(Model.of(name), NODES, sequence=4096, **options)
    (found,) = obstacles(plan, LaunchInputs())
    assert reason in found


def test_embedding_and_head_are_parts_of_a_pipeline():
    """Llama 3 405B's 126 layers ran on 16 stages of 8 parts (arXiv:2407.21783); more parts than that have no work."""
    model = Model.of("llama3_1_405b")
    published = {"gpus": 8192, "micro_batch": 1, "sequence": 8192, "tensor": 8, "pipeline": 16}
    check(Layout(**published, virtual_stages=8), model)
    with pytest.raises(LayoutError, match="126 layers, embedding and head are too few for 16 pipeline stages of 9"):
        check(Layout(**published, virtual_stages=9), model)


def test_an_eager_run_is_planned_slower_than_a_compiled_one(tmp_path):
    """Both measured pairs, torchtitan's on H100 and ours on an H200, have 0.86 of the compiled tokens/s."""
    path = tmp_path / "run.yaml"
    path.write_text("preset: llama3_2_1b\ntrain_batch_size: 2\nmax_context_width: 8192\nmax_steps: 70\nrun_dir: a\n")
    run = sources.load_file(path)
    compiled, eager = (plan_run(replace(run, compile=value), NODES).speed for value in (None, False))
    assert eager.tokens_per_s_per_gpu / compiled.tokens_per_s_per_gpu == pytest.approx(0.86, abs=0.02)
    assert eager.parts["unfused operations"] > 0
