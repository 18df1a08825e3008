"""One configuration from presets, files and flags, or all that is wrong with it."""

import argparse
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from podwright_training.config import families, sources
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import SECTIONS, TrainConfig, conflicts, option_names
from podwright_training.errors import ConfigError
from podwright_training.spelling import as_shown

SEED_FLAGS = """
    --max_context_width=8192 --num_key_value_heads=2 --intermediate_size=8192 --hidden_width=2048 --num_layers=16
    --num_heads=32 --model_type=llama_v3 --tokenizer=hf-internal-testing/llama-tokenizer --checkpoint_freq=50
    --validation_freq=25 --max_steps=100 --checkpoint_dir=./checkpoints --resume_from_checkpoint=./checkpoints
    --dataset=allenai/c4 --dataset_config_name=en --train_batch_size=1 --val_batch_size=1 --sharding_strategy=full
    --offload_activations=1
"""


def load(*flags):
    """The configuration these flags give."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sources.add_arguments(parser)
    args, args.unknown_words = parser.parse_known_args(as_shown(flags, parser))
    return sources.load(args)


def test_every_option_is_used():
    """Some module reads each option."""
    package = Path(families.__file__).parents[1]
    read = {name for file in package.rglob("*.py") for name in re.findall(r"\.(\w+)", file.read_text())}
    assert {field.name for field in fields(TrainConfig)} <= read


def problems(*flags):
    """Return the problems of these flags."""
    with pytest.raises(ConfigError) as error:
        load(*flags)
    return error.value.problems


def test_the_seeds_flags_are_understood():
    """The flags of the project's first scripts give its model: 1.15 billion parameters, saved where it resumes."""
    options = load(*SEED_FLAGS.split())
    assert options.model.parameters == 1_154_549_760
    assert str(options.checkpoints) == options.resume_from_checkpoint.removeprefix("./")
    assert options.offload_activations is True


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    """Each source overrides the ones before."""
    file = tmp_path / "run.yaml"
    file.write_text("lr: 1e-2\nmax_steps: 7\n")
    options = load("--preset", "tiny", "--config", str(file), "--max-steps", "9")
    assert (options.hidden_size, options.lr, options.max_steps) == (192, 0.01, 9)


def test_the_old_name_of_an_option_is_an_alias(tmp_path):
    """AWS's ``hidden_width`` sets ``hidden_size``, as a flag and in a file."""
    file = tmp_path / "run.yaml"
    file.write_text("hidden_width: 96\n")
    assert load("--hidden-width", "48").hidden_size == 48
    assert load_file(file) == load("--hidden-size", "96")


def test_help_groups_the_options_by_section():
    """Every option is listed once, under its section."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sources.add_arguments(parser)
    groups = {group.title: [item.dest for item in group._group_actions] for group in parser._action_groups}
    assert {title: groups[title] for title in SECTIONS} == {
        title: [item.name for item in fields(section)] for title, section in SECTIONS.items()
    }
    assert sorted(option_names()) == sorted(item.name for item in fields(TrainConfig))


def test_a_dense_family_is_one_entry(monkeypatch):
    """An entry in ``FAMILIES`` gives a model type its checks, its defaults and its Hugging Face class."""
    monkeypatch.setitem(families.FAMILIES, "qwen3", families.Family(architecture="qwen3", rope_theta=1e6))
    options = TrainConfig(model_type="qwen3", qk_norm=True)
    assert not list(conflicts(options))
    assert options.model.to_hf()["architectures"] == ["Qwen3ForCausalLM"]
    assert options.model.rope_theta == 1e6
    ((_, problem),) = conflicts(TrainConfig(model_type="qwen3"))
    assert problem == "model_type qwen3 needs qk_norm"


def test_switches_are_on_or_off(capsys):
    """``--bf16`` and ``--no-bf16``; the older ``--bf16 0`` and ``--bf16=1`` mean the same; nothing else does."""
    spelt = ("--bf16", "--no-bf16", "--bf16 0", "--bf16=1", "--bf16=False", "--no-bf16=0")
    assert [load(*flags.split()).bf16 for flags in spelt] == [True, False, False, True, False, True]
    with pytest.raises(SystemExit):
        load("--bf16=2")
    assert "--bf16: got 2, need no value: write --bf16 or --no-bf16" in capsys.readouterr().err


def test_what_is_written_is_read_back(tmp_path):
    """``to_yaml`` and ``--config`` are inverse."""
    options = load("--preset", "llama3_2_1b", "--warmup", "0.1", "--offload-activations", "1")
    (tmp_path / "config.yaml").write_text(options.to_yaml())
    assert load_file(tmp_path / "config.yaml") == options
    assert load_file(tmp_path / "config.yaml").digest == options.digest != TrainConfig().digest


def test_all_problems_are_reported_at_once(tmp_path):
    """Unknown keys with what was meant, wrong values with what is allowed, options that contradict each other."""
    file = tmp_path / "run.yaml"
    file.write_text("learning_rat: 1\nmin_lrr: 1\nval_batch_size: 1.5\ngrad_clip: [1]\n")
    flags = f"""--config={file} --max-step=3 --max-steps=0 --lr=fast --model-type=gpt_neox --num-heads=7
        --warmup=.7 --plateau=.7 --offload-activations=1 --activation-checkpointing=0"""
    assert problems(*flags.split()) == [
        "unknown flag --max-step; did you mean --max-steps?",
        f"{file}:1:1: unknown option learning_rat",
        f"{file}:2:1: unknown option min_lrr; did you mean min_lr?",
        f"model_type: got gpt_neox (flag), need one of {', '.join(families.FAMILIES)}",
        "max_steps: got 0 (flag), need at least 1",
        "lr: got fast (flag), need a number",
        f"{file}:4:12: grad_clip: got a list, need a number",
        f"{file}:3:17: val_batch_size: got 1.5, need a whole number",
        "hidden_size 768 is not divisible by num_heads 7",
        "warmup 0.7 and plateau 0.7 add up to more than 1",
        "offload_activations needs activation_checkpointing 1: it moves the activations that checkpointing keeps",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--preset tyni", "preset: got tyni (flag), need one of llama2_13b, "),
        ("--activation-checkpointing-mode budget --no-compile", "activation_checkpointing_mode budget needs compile 1"),
        ("--num-key-value-heads 5", "num_heads 12 is not divisible by num_key_value_heads 5"),
        ("--hidden-size 60", "hidden_size 60 / num_heads 12 is odd"),
        ("--head-dim 33", "head_dim 33 is odd"),
        ("--sliding-window 64", "sliding_window 64: model_type llama_v3 does not support it; use mistral or "),
        (
            "--model-type mistral --qk-norm",
            "qk_norm 1: model_type mistral does not support it; use llama_v2 or llama_v3",
        ),
        ("--model-type mixtral", "model_type mixtral needs num_local_experts"),
        ("--num-local-experts 8", "num_local_experts 8: model_type llama_v3 does not support it; use mixtral"),
        (
            "--model-type mixtral --num-local-experts 2 --num-experts-per-tok 3",
            "num_experts_per_tok 3 is above num_local_experts 2",
        ),
        ("--float8 --precision fp32", "float8 needs precision bf16, not fp32"),
        ("--preset llama2_7b --max-context-width 8192", "max_context_width 8192 is above max_position_embeddings 4096"),
        ("--min-lr 1", "min_lr 1.0 is above lr 0.0001"),
        (
            "--lr-schedule wsd --warmup 0.5 --wsd-decay 0.5 --plateau 0.1",
            "warmup 0.5, wsd_decay 0.5 and plateau 0.1 add up to more than 1",
        ),
        ("--batch-ramp 0.1", "batch_ramp 0.1 needs more than one micro-batch: set global_batch_size"),
        ("--noise-scale-freq 5", "noise_scale_freq 5 needs more than one micro-batch"),
        ("--profile-steps 15-10", "profile_steps 15-10: write the first and last step, as in 10-15"),
        ("--profile-steps 10-15 --max-steps 12", "profile_steps 10-15 goes beyond max_steps 12"),
        ("--lr nan", "lr: got nan (flag), need more than 0"),
        ("--beta1 1", "beta1: got 1 (flag), need less than 1"),
        ("--beta2 1", "beta2: got 1 (flag), need less than 1"),
        ("--ema-decay 1", "ema_decay: got 1 (flag), need less than 1"),
        ("--config /nowhere.yaml", "cannot read /nowhere.yaml: No such file or directory"),
    ],
)
def test_a_wrong_option_is_explained(flags, message):
    """One line says what was given and what is allowed."""
    (problem,) = problems(*flags.split())
    assert problem.startswith(message)


def test_a_file_that_is_no_mapping_is_refused(tmp_path):
    """A list instead of a mapping is named in the error."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(["lr"]))
    assert problems("--config", str(tmp_path / "run.yaml")) == [
        f"{tmp_path / 'run.yaml'}: got a list, need `option: value` lines"
    ]


def test_a_precision_wins_over_the_switch():
    """Without ``--precision``, ``--bf16`` says what is computed in."""
    flags = ([], ["--bf16", "0"], ["--precision", "fp16"], ["--bf16", "0", "--precision", "bf16"])
    assert [load(*given).compute_precision for given in flags] == ["bf16", "fp32", "fp16", "bf16"]


@pytest.mark.parametrize(
    "module",
    ["config.train_config", "__main__", "commands.train", "commands.launch", "commands.evaluate", "commands.generate"],
)
def test_importing_pulls_no_torch(module):
    """Planning and ``--help`` do not wait for torch."""
    heavy = {"torch", "transformers", "datasets"}
    script = f"import sys, podwright_training.{module}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode
        == 0
    )


def test_numbers_are_finite():
    """An infinite learning rate is refused."""
    assert problems("--lr", "inf") == ["lr: got inf (flag), need a finite number"]
