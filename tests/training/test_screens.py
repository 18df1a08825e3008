"""Nothing that podwright-train prints to a terminal is wider than it."""

import json
import os
import sys

import pytest

from podwright_testing.terminal import Terminal
from podwright_training import __main__ as trainer

COMMANDS = """
train --preset tinny
train --max-steps x --lr fast --guard-policy rolback --global-batch-size 7 --precision fp7
train --preset tiny --run-dir {folder}/run --dataset {folder}/absent --tokenizer {folder}/absent
launch --preset tiny
launch --preset tiny --nodes 1 --nproc-per-node 1 --partition a:b --run-dir {folder}/x --environment /nope
launch --preset llama3_8b --backend nxdt --instance ml.p5.48xlarge --run-dir {folder}/x
launch --job {folder}/absent.yaml
follow --run-dir {folder}/absent --ranks 16
join --min-nodes 4 --max-nodes 2 --member x
dry-run --preset tiny --world-size 2 --memory-gb 1
dry-run --preset tinny
consolidate --run-dir {folder}/absent
evaluate --run-dir {folder}/absent
generate --run-dir {folder}/absent
report --run-dir {folder}/absent
watch --run-dir {folder}/absent --refresh-s x
replay --run-dir {folder}/absent --step 40
tokenize --dataset {folder}/absent --tokenizer {folder}/absent --output {folder}/tokens
tokenizer train --dataset {folder}/absent --output {folder}/own
tokenizer train --dataset {data} --output {folder}/own --vocab-size 300
tokenizer inspect {folder}/own {data}/tokenizer --dataset {data} --documents 4
tokenize --dataset {data} --tokenizer {data}/tokenizer --output {folder}/tokens --data-workers 1
curate --dataset {folder}/absent --tokenizer {data}/tokenizer --output {folder}/curated
prepare {folder}/absent.zip --output {folder}/data
trian
report --run-dir a --usd-per-houre 3
report --run-dir {run} --output {folder}/report
replay --run-dir {run} --step 9
replay --run-dir {run} --step 99
"""
PROGRAM = """
import contextlib, sys
from podwright_training.__main__ import main
for line in sys.argv[1].splitlines():
    print(f"$ {line}" if len(line) < 50 else "$")
    with contextlib.suppress(SystemExit):
        main(line.split())
"""


def printed(lines, columns):
    """Return what commands print to a terminal."""
    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment = {**without, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # PyTorch's libraries write to the terminal themselves
    words = [sys.executable, "-c", PROGRAM, lines]
    with Terminal(words, columns=columns, environment=environment) as terminal:
        assert terminal.wait() == 0, terminal.text
        return terminal.text


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
def test_every_command_fits(columns, text_dataset, undisturbed, tmp_path):
    """Help, answers and errors of all commands have no line over the width, but for words that are wider alone."""
    helps = "".join(f"{name} --help\n" for name in trainer.COMMANDS)
    below = "tokenizer train --help\ntokenizer inspect --help\n--help\n"
    text = printed(helps + below + COMMANDS.format(folder=tmp_path, data=text_dataset, run=undisturbed), columns)
    wide = [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
    assert wide == []
    assert text.count("\n$") > 40
    assert "Traceback" not in text
    words = " ".join(text.split())  # where lines end depends on the paths in them
    for shown in ("example", "parameters in its shards", "384 tokens", "documents, "):
        assert shown in words


def test_documents_keep_their_lines(text_dataset):
    """A document is on a terminal as it is in a pipe: a line break within a text would not be JSON."""
    for line in (
        "schema",
        "schema report",
        f"tokenizer inspect {text_dataset}/tokenizer --dataset {text_dataset} --json",
    ):
        text = printed(line, 40)
        assert json.loads(text[text.index("{") :])
