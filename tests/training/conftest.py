"""A small dataset in C4's layout, its tokenizer, and training jobs started as a user starts them."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from podwright_training.checkpoint import checkpoint_reader, trainer_state
from podwright_training.model import LlamaForCausalLM
from podwright_training.spelling import as_flag

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 300
LIMIT_S = 500  # of a command, on a busy machine

# Threads of such small models only wait for each other, and spin: beside other work that took ten times as long.
torch.set_num_threads(1)
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # of processes that tests start


@pytest.fixture(scope="session")
def text_dataset(tmp_path_factory):
    """Two training shards and a validation shard of made-up sentences, and a tokenizer in ``tokenizer/``."""
    folder = tmp_path_factory.mktemp("dataset")
    draw = random.Random(0)  # noqa: S311 - not for secrets
    words = ["the", "node", "reads", "a", "file", "and", "then", "writes", "another", "while", "some", "wait"]
    texts = [" ".join(draw.choices(words, k=draw.randint(10, 60))) for _ in range(300)]
    (folder / "en").mkdir()
    for name, part in (("train.00000-of-01024", texts[:140]), ("train.00001-of-01024", texts[140:280])):
        _write_shard(folder / "en" / f"c4-{name}.json.gz", part)
    _write_shard(folder / "en" / "c4-validation.00000-of-00008.json.gz", texts[280:])
    _train_tokenizer(texts).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="session")
def word_tokenizer():
    """Knows the words ``w1`` to ``w999`` by their numbers; 0 ends a text."""
    words = {"<end>": 0, **{f"w{number}": number for number in range(1, 1000)}}
    model = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>", model_max_length=16)


@pytest.fixture(scope="session")
def tiny_flags(text_dataset):
    """Flags of a run that takes seconds; the global batch has 8 sequences on 1, 2 or 4 ranks."""

    def flags(run_dir, *, ranks=2, **options):
        values = {
            "run_dir": run_dir,
            "dataset": text_dataset,
            "tokenizer": text_dataset / "tokenizer",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 2,
            "num_heads": 4,
            "num_key_value_heads": 2,
            "max_context_width": 32,
            "train_batch_size": 8 // ranks,
            "val_batch_size": 8 // ranks,
            "validation_sequences": 16,
            "data_streams": 4,
            "data_workers": 0,
            "max_steps": 12,
            "logging_freq": 1,
            "checkpoint_freq": 4,
            "lr": 0.01,
            "warmup": 0.2,
            "bf16": False,
            "device": "cpu",
        }
        return [as_flag(name, value) for name, value in (values | options).items()]

    return flags


@pytest.fixture(scope="session")
def start():
    """Starts ``podwright-train`` in processes of its own, with torchrun if ``ranks`` is given."""

    def start(command, *flags, ranks=None, torchrun=()):
        launcher = ["torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
        if ranks and not torchrun:
            torchrun = ("--standalone",)
        arguments = [*launcher, *torchrun, *(["-m"] if ranks else []), "podwright_training", command, *flags]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "common"), str(ROOT / "training")])
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def call(start):
    """Starts a command, waits for it, and returns its exit status and what it printed."""

    def call(command, *flags, **options):
        process = start(command, *flags, **options)
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output

    return call


@pytest.fixture(scope="session")
def fork_server():
    """Answers one job of ``fork_server.py`` at a time, from a process that has imported torch and transformers."""
    server = _start_fork_server()

    def answer(**job):
        nonlocal server
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        try:
            return json.loads(server.stdout.readline())
        except BaseException:  # a time limit: the late answer must not reach the next test
            server.terminate()
            server.communicate()
            server = _start_fork_server()
            raise

    yield answer
    server.communicate()


@pytest.fixture(scope="session")
def call_ranks(fork_server):
    """Runs a command on several ranks: exit status, output."""

    def call_ranks(ranks, *argv, **options):
        answer = fork_server(argv=list(map(str, argv)), ranks=ranks, **options)
        return answer["status"], answer["output"]

    return call_ranks


@pytest.fixture(scope="session")
def model_of():
    """Our model with the weights of a checkpoint, not divided."""

    def model_of(path):
        model = LlamaForCausalLM(trainer_state.model_config(path))
        checkpoint_reader.load_weights(model, path)
        return model

    return model_of


@pytest.fixture(scope="session")
def run_ranks(fork_server):
    """Runs a script on several ranks; its first argument is a folder, where they can meet by the file ``store``."""

    def run_ranks(script, folder, *argv, ranks):
        answer = fork_server(script=str(script), argv=[str(folder), *argv], ranks=ranks)
        assert answer["status"] == 0, answer["output"]

    return run_ranks


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, tiny_flags, call_ranks):
    """The folder of a run on two ranks that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    status, output = call_ranks(2, "train", *tiny_flags(folder))
    assert status == 0, output
    return folder


def _start_fork_server():
    paths = [ROOT, ROOT / "training", ROOT / "tests" / "support"]  # A test's own script imports from support.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fork_server.py")],
        env={**environment, "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _write_shard(path, texts):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text, "timestamp": "", "url": ""}) + "\n" for text in texts)


def _train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|end|>")
