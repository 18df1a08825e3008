"""NxD Training gets its own files, and a job that it or trn1 would refuse is refused at launch."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from podwright.planning import nxdt as planner
from podwright_training.__main__ import main
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import PRESETS
from podwright_training.errors import UserError
from podwright_training.nxdt import chain, dataset, memory
from podwright_training.nxdt.plan import COMPILER, Plan, layout_of, problems, shared_folder
from podwright_training.run_folder import NXDT_STEPS, RunFolder
from tests.training.test_launch import check_sound

# Keys and values of NxD Training's example hf_llama3_8B, each read in its repository, release 1.5:
# https://github.com/aws-neuron/neuronx-distributed-training/blob/9169aa0/examples/conf/hf_llama3_8B_config.yaml
# Places that depend on the machine are the test's; two numbers are written as references there.
DOCUMENTED = {
    "name": "hf_llama",
    "model_source": "hf",
    "seed": 1234,
    "trainer.devices": 32,
    "trainer.num_nodes": 4,
    "trainer.max_epochs": -1,
    "trainer.max_steps": 10000,
    "trainer.log_every_n_steps": 10,
    "trainer.val_check_interval": 10001,
    "trainer.check_val_every_n_epoch": None,
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0.0,
    "trainer.limit_test_batches": 0.0,
    "trainer.gradient_clip_val": 1.0,
    "exp_manager.log_local_rank_0_only": True,
    "exp_manager.create_tensorboard_logger": True,
    "exp_manager.explicit_log_dir": "/fsx/runs/a/nxdt/results",
    "exp_manager.exp_dir": None,
    "exp_manager.name": "hf_llama",
    "exp_manager.resume_if_exists": True,
    "exp_manager.resume_ignore_no_checkpoint": True,
    "exp_manager.create_checkpoint_callback": True,
    "exp_manager.checkpoint_callback_params.monitor": "step",
    "exp_manager.checkpoint_callback_params.save_top_k": 1,
    "exp_manager.checkpoint_callback_params.mode": "max",
    "exp_manager.checkpoint_callback_params.save_last": False,
    "exp_manager.checkpoint_callback_params.filename": "llama3_8b--{step}-{consumed_samples}",
    "exp_manager.checkpoint_callback_params.model_parallel_size": 32,
    "exp_manager.checkpoint_callback_params.every_n_train_steps": 10,
    "exp_manager.checkpoint_callback_params.use_master_weights_in_ckpt": False,
    "exp_manager.log_parameter_norm": True,
    "exp_manager.log_gradient_norm": True,
    "exp_manager.enable_recovery_time_instrumentation": False,
    "exp_manager.save_xser": True,
    "exp_manager.load_xser": True,
    "exp_manager.save_bf16": False,
    "exp_manager.async_checkpointing": False,
    "exp_manager.resume_from_checkpoint": None,
    "distributed_strategy.tensor_model_parallel_size": 32,
    "distributed_strategy.pipeline_model_parallel_size": 1,
    "distributed_strategy.virtual_pipeline_model_parallel_size": 1,
    "distributed_strategy.context_parallel_size": 1,
    "distributed_strategy.zero1": True,
    "distributed_strategy.sequence_parallel": True,
    "distributed_strategy.kv_replicator": 4,
    "data.micro_batch_size": 1,
    "data.global_batch_size": 1024,
    "data.train_dir": "DATASET",
    "model.model_config": "/fsx/runs/a/nxdt/config.json",
    "model.encoder_seq_length": 8192,
    "model.max_position_embeddings": 8192,
    "model.num_layers": 32,
    "model.hidden_size": 4096,
    "model.qkv_linear": True,
    "model.fuse_qkv": True,
    "model.rope_theta": 500000.0,
    "model.use_cpu_initialization": True,
    "model.activations_checkpoint_granularity": "selective",
    "model.activations_checkpoint_recompute": ["CoreAttention"],
    "model.fusions.softmax": True,
    "model.fusions.flash_attention": True,
    "model.do_layer_norm_weight_decay": True,
    "model.optim.name": "adamw_fp32OptState",
    "model.optim.lr": 1.5e-4,
    "model.optim.weight_decay": 0.01,
    "model.optim.capturable": False,
    "model.optim.betas": [0.9, 0.999],
    "model.optim.sched.name": "LinearAnnealingWithWarmUp",
    "model.optim.sched.warmup_steps": 100,
    "model.optim.sched.max_steps": 10000,
    "precision.type": "mixed_precision",
    "precision.master_weights": False,
    "precision.fp32_grad_acc": False,
    "precision.xla_use_bf16": "0",
    "precision.xla_downcast_bf16": "0",
    "precision.neuron_rt_stochastic_rounding_en": "0",
    "compiler_flags": "--model-type transformer",
    "compiler_cache_url": "CACHE",
    "aync_exec_max_inflight_requests": 5,
    "bucket_size_collectives": 1024,
    "neuron_rt_exec_timeout": 100,
    "neuron_experimental_compress_rg": False,
}
EXAMPLE = {
    "seed": 1234, "max_steps": 10000, "logging_freq": 10, "checkpoint_freq": 10, "train_batch_size": 1,
    "global_batch_size": 1024, "lr": 1.5e-4, "weight_decay": 0.01, "beta2": 0.999, "warmup": 0.01,
    "activation_checkpointing_mode": "selective", "preset": "llama3_8b",
}  # fmt: skip


def plan_of(*, instance_type="ml.trn1.32xlarge", nodes=4, run_dir=Path("/fsx/runs/a"), shared=Path("/fsx"), **changes):
    """The example's job, with other options."""
    options = replace(load_file(PRESETS / "llama3_8b.yaml"), **{**EXAMPLE, **changes})
    layout = layout_of(options, instance_type, nodes, key_value_copies=None, tensor=None)
    return Plan(
        run=RunFolder(run_dir), config=options, instance_type=instance_type, nodes=nodes, layout=layout, shared=shared,
        podwright=Path("/fsx/env"),
    )  # fmt: skip


def flat(content, prefix=""):
    """A nested mapping as one of dotted keys."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_the_example_of_llama_3_is_rendered_key_by_key():
    """Every documented key, no other, with its value."""
    plan = plan_of()
    rendered = dict(flat(yaml.safe_load(chain.files(plan)["config.yaml"])))
    assert rendered == {**DOCUMENTED, "data.train_dir": str(plan.dataset), "compiler_cache_url": plan.cache}


def test_its_transformers_reads_the_model():
    """config.json has the keys of transformers 4, and is the published model."""
    content = json.loads(chain.files(plan_of())["config.json"])
    assert (content["rope_theta"], content["rope_scaling"], content["torch_dtype"]) == (500000.0, None, "float32")
    assert (content["num_key_value_heads"], content["vocab_size"], content["model_type"]) == (8, 128256, "llama")


def test_a_cache_is_of_one_model_layout_and_compiler(monkeypatch):
    """Another model, layout or compiler has another place; another learning rate has the same."""
    usual = plan_of().cache
    assert plan_of(lr=1e-5).cache == usual
    others = {plan_of(num_layers=16).cache, plan_of(pipeline_parallel=2).cache, plan_of(nodes=2).cache}
    monkeypatch.setattr("podwright_training.nxdt.plan.COMPILER", "2.24.5133.0")
    others.add(plan_of().cache)
    assert len(others | {usual}) == 5


def test_scripts_are_sound(tmp_path):
    """Bash parses every script and shellcheck finds nothing to say, with a cache on FSx and on S3."""
    plans = [plan_of(), replace(plan_of(instance_type="ml.trn2.48xlarge"), cache_root="s3://bucket/cache")]
    check_sound([chain.script(plan, step) for plan in plans for step in NXDT_STEPS], tmp_path)
    assert "--nproc-per-node=64" in chain.script(plans[1], "train")


def launch(capsys, *words, options=()):
    """Print the example's jobs; return status and error."""
    base = ["launch", "--backend", "nxdt", "--preset", "llama3_8b", "--run-dir", "/fsx/runs/a", "--print"]
    fixed = ["--train-batch-size=1", "--global-batch-size=1024", "--activation-checkpointing-mode=selective"]
    status = main([*base, "--instance", "ml.trn1.32xlarge", *words, "--", *fixed, *options])
    return status, capsys.readouterr()


def test_the_published_job_is_accepted(capsys):
    """Tensor parallelism over all cores of one trn1, with four copies of key-value heads, as printed there."""
    status, printed = launch(capsys)
    assert status == 0
    assert "tensor_model_parallel_size: 32" in printed.out
    assert "kv_replicator: 4" in printed.out


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (
            (),
            ("--tensor-parallel=8",),
            "memory: podwright plan predicts 35.0 GB of a device's 34.3",
        ),
        ((), ("--tensor-parallel=16",), "tensor_parallel 16: ml.trn1.32xlarge has collectives among 1, 2, 8 or 32"),
        (
            ("--kv-replicator=2",),
            (),
            "does not divide 8 key-value heads x kv_replicator 2 = 16: set --kv-replicator 4",
        ),
        ((), ("--precision=fp16",), "precision fp16: NxD Training has bf16 and fp32"),
        (("--neuron-index=",), (), "--neuron-index: got nothing, need Neuron's own"),
        (("--neuron-index=https://pypi.org/simple",), (), "PyPI's packages of these names are placeholders"),
        (("--compile-cache=cache",), (), "--compile-cache: got cache, need a folder that all nodes see, or s3://"),
        (("--instance=ml.p5.48xlarge",), (), "--instance: got ml.p5.48xlarge, need one of ml.trn1.32xlarge"),
        ((), ("--ema-decay=0.9",), "--ema-decay: NxD Training has no such option"),
        (("--nodes=2-4",), (), "--nodes: NxD Training is not elastic"),
        (("--environment=/nope",), (), "--environment: got /nope, which has no bin/python: name the virtual"),
        (("--spares=1",), (), "--nodes: NxD Training is not elastic"),
        (("--nodes=0",), (), "--nodes: got 0, need at least 1"),
        (("--kv-replicator=-4",), (), "--kv-replicator: got -4, need 1 to 4: 8 key-value heads are copied for 32"),
        (("--kv-replicator=32",), (), "--kv-replicator: got 32, need 1 to 4"),
        (("--time-limit=1:00:00",), (), "--time-limit: leave it out, --backend nxdt has none"),
        (("--partition=a\n#SBATCH --uid=0",), (), r"--partition: got 'a\n#SBATCH --uid=0', need a name"),
        (
            (),
            ("--global-batch-size=1023", "--pipeline-parallel=3"),
            "x pipeline_parallel 3 x context_parallel 1 = 96 does",
        ),
    ],
)
def test_a_job_that_cannot_run_is_refused_in_a_line(capsys, words, options, message):
    """Each line has what was given and what is allowed."""
    status, printed = launch(capsys, *words, options=options)
    assert status == 2
    assert any(message in line for line in printed.err.splitlines())
    assert printed.out == ""


def test_a_cache_of_another_compiler_is_refused(tmp_path, capsys):
    """The run names its own; a folder that was renamed or copied says whose it is."""
    words = ("--compile-cache", str(tmp_path))
    status, printed = launch(capsys, *words)
    cache = Path(next(line for line in printed.out.splitlines() if line.startswith("compiler_cache_url")).split()[1])
    assert (status, cache.parent) == (0, tmp_path)
    cache.mkdir()
    (cache / "podwright.json").write_text('{"compiler": "2.21.18209.0"}')
    status, printed = launch(capsys, *words)
    assert status == 2
    assert f"--compile-cache: {cache} was made by neuronx-cc 2.21.18209.0, but the run uses {COMPILER}" in printed.err


def test_a_trn1_has_no_native_path(capsys):
    """It is refused before a job waits for nodes, with the way that it has."""
    words = ["launch", "--preset", "llama3_8b", "--run-dir", "/fsx/runs/a", "--nodes", "1", "--nproc-per-node", "32"]
    assert main([*words, "--instance", "ml.trn1.32xlarge", "--print"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "needs Trainium2 or Trainium3, and this is Trainium: train on it with NxD Training" in line


def test_the_memory_of_a_model_without_a_preset_is_predicted():
    """Its sizes count: with a quarter of the layers it needs less, and a preset's own are the preset's."""
    whole = planner.prediction(plan_of(nodes=1))
    assert planner.prediction(plan_of(nodes=1, preset=None)) == whole
    assert planner.prediction(plan_of(nodes=1, num_layers=8)).peak_gb < whole.peak_gb


def test_the_planner_s_memory_is_its_command_s():
    """Its figures of the published job and of the one that ran out of memory."""
    fits, fails = (
        memory.predict(plan_of(nodes=1)),
        memory.predict(
            replace(plan_of(nodes=1), layout=plan_of(nodes=1).layout._replace(tensor=8, key_value_copies=1))
        ),
    )
    assert fits == planner.prediction(plan_of(nodes=1))
    assert (fits.fits, fails.fits) == (True, False)
    assert fits.peak_gb < fits.has_gb < fails.peak_gb


def test_a_dataset_is_of_one_text_and_order(tmp_path, monkeypatch):
    """Text column, order and the place of a relative path decide its folder, and a learning rate does not."""
    usual = plan_of().dataset
    assert plan_of(lr=1e-5).dataset == usual
    others = {plan_of(text_column="body").dataset, plan_of(seed=7).dataset, plan_of(data_streams=3).dataset}
    for folder in ("a", "b"):
        (tmp_path / folder / "text").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        others.add(plan_of(dataset="text").dataset)
    assert len(others | {usual}) == 6


def load_rows(folder):
    """Load rows as NxD Training does."""
    import datasets  # takes a second, which each test worker would spend while it collects

    return datasets.load_from_disk(str(folder))


def test_the_dataset_is_tokenised_to_arrow(text_dataset, tmp_path):
    """Rows of packed documents that datasets loads as NxD Training does, of one pass over the data."""
    tokenizer = text_dataset / "tokenizer"
    options = {
        "dataset": text_dataset,
        "tokenizer": tokenizer,
        "max_context_width": 32,
        "data_streams": 2,
        "vocab_size": 300,
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert dataset.main(["--out", str(tmp_path / "few"), "--sequences", "5", *words]) == 0
    rows = load_rows(tmp_path / "few")
    assert len(rows) == 5
    assert all(len(row["input_ids"]) == 32 and row["labels"] == row["input_ids"] for row in rows)
    assert rows[0]["attention_mask"] == [1] * 32
    assert " then " in AutoTokenizer.from_pretrained(tokenizer).decode(rows[0]["input_ids"])
    assert dataset.main(["--out", str(tmp_path / "all"), "--sequences", "1000000", *words]) == 0
    rows = load_rows(tmp_path / "all")
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    shards = [gzip.decompress(path.read_bytes()).splitlines() for path in text_dataset.rglob("*train*.gz")]
    texts = [json.loads(line)["text"] for shard in shards for line in shard]
    tokens = sum(len(ids) + 1 for ids in loaded(texts, add_special_tokens=False)["input_ids"])
    assert 0 <= tokens - 33 * len(rows) < 2 * 33  # the end of each stream that fills no row; a label more than a row


def test_any_number_of_processes_writes_the_same_bytes(text_dataset, tmp_path):
    """Rows, their order, the end of the one pass and every file are those of a single process."""
    words = [f"--dataset={text_dataset}", f"--tokenizer={text_dataset / 'tokenizer'}", "--vocab-size=300"]
    written = []
    for workers in (0, 1, 3):
        out = tmp_path / str(workers) / "rows"
        more = ["--sequences=1000000", "--max-context-width=32", "--data-streams=4", f"--workers={workers}"]
        assert dataset.main([f"--out={out}", *more, *words]) == 0
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1] == written[2]
    assert {name.split("-")[0] for name in written[0]} == {"data", "dataset_info.json", "state.json"}


def test_a_dataset_that_cannot_be_read_or_written_is_one_line(text_dataset, tmp_path, capsys):
    """The job's log says what is wrong, and no part of a dataset is left under its name."""
    words = [f"--tokenizer={text_dataset / 'tokenizer'}", "--vocab-size=300", "--sequences=5", "--workers=2"]
    (tmp_path / "full").touch()
    for place, source in (("rows", tmp_path / "nothing"), ("full/rows", text_dataset)):
        assert dataset.main([f"--out={tmp_path / place}", f"--dataset={source}", *words]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert not (tmp_path / place).exists()


@pytest.mark.slow
def test_two_runs_share_one_dataset(text_dataset, tmp_path):
    """Of jobs that need the same dataset at once, one writes it and the others wait for it; nothing else is left."""
    out = tmp_path / "shared" / "rows"
    words = [sys.executable, "-m", "podwright_training.nxdt.dataset", f"--out={out}", "--sequences=20"]
    words += [f"--dataset={text_dataset}", f"--tokenizer={text_dataset / 'tokenizer'}", "--vocab-size=300"]
    words += ["--max-context-width=32", "--data-streams=2"]
    jobs = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    last = sorted(text.splitlines()[-1] for text in printed)
    assert last == [f"{out} exists already"] * 2 + [f"{out}: 20 sequences"]
    assert len(load_rows(out)) == 20
    assert sorted(path.name for path in out.parent.iterdir()) == ["rows", "rows.lock"]


def test_a_killed_job_leaves_no_lock(text_dataset, tmp_path):
    """A dataset that a killed job left in part is written again by the next."""
    out = tmp_path / "rows"
    (tmp_path / "rows.partial" / "rows").mkdir(parents=True)
    (tmp_path / "rows.partial" / "rows" / "old").touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    words = [f"--dataset={text_dataset}", f"--tokenizer={text_dataset / 'tokenizer'}", "--vocab-size=300"]
    assert dataset.main([f"--out={out}", "--sequences=5", "--max-context-width=32", "--data-streams=2", *words]) == 0
    assert not (out / "old").exists()
    assert len(load_rows(out)) == 5


HOLD = """
import sys
from pathlib import Path
from podwright_training.run_folder import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_runs_of_a_user_share_is_in_a_folder_of_theirs_alone(tmp_path, monkeypatch):
    """Environment, dataset and cache are in a private folder; nothing is submitted if somebody else has taken it."""
    monkeypatch.setenv("PATH", "/nowhere")  # no sbatch
    run_dir = tmp_path / "runs" / "a"
    plan = plan_of(run_dir=run_dir, shared=shared_folder(run_dir))
    with pytest.raises(UserError, match="sbatch not found"):
        chain.submit(plan)
    assert plan.shared.stat().st_mode & 0o777 == 0o700
    for place in (plan.environment, plan.dataset, Path(plan.cache)):
        assert place.is_relative_to(plan.shared)
    plan.shared.chmod(0o777)
    with pytest.raises(UserError, match="need your own folder of mode 700"):
        chain.submit(plan)


def test_a_compile_cache_that_others_can_write_is_refused(tmp_path):
    """Compiled graphs of a folder that is open to all are not used."""
    plan = replace(plan_of(), cache_root=str(tmp_path))
    assert list(problems(plan)) == []
    tmp_path.chmod(0o777)
    (problem,) = problems(plan)
    assert problem.startswith(f"--compile-cache: {tmp_path}: got owner uid")


def test_one_job_at_a_time_makes_the_environment(tmp_path):
    """A second environment job waits for the lock of the first, and then finds what that one made."""
    plan = replace(plan_of(), shared=tmp_path)
    script = tmp_path / "environment.sbatch"
    script.write_text(chain.script(plan, "environment"))
    plan.environment.parent.mkdir(parents=True, exist_ok=True)
    place = shlex.quote(str(plan.environment))
    first = f"exec 9>{place}.lock; flock 9; echo held; read _; mkdir -p {place}; touch {place}/complete"
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a"}
    holder = subprocess.Popen(["bash", "-c", first], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    second = subprocess.Popen(["bash", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert "=== environment" in second.stdout.readline()
    assert "another job makes" in second.stdout.readline()
    holder.communicate("\n")
    rest = second.communicate()[0]
    assert second.returncode == 0
    assert rest == f"{plan.environment} exists already\n"
