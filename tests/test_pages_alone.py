"""Commands of pages that need no cluster run as they stand: ``<!-- run: alone -->`` and ``<!-- run: apart -->``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright_testing.pages import PAGES, Block, to_run, without_comment

LIMIT_S = 900


def texts() -> Iterator[str]:
    """Yield English prose that filters of quality let through: our pages without code and tables."""
    for page in PAGES:
        text = re.sub(
            r"```.*?```|^\|[^\n]*$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        yield re.sub(r"[`*#]|\[|\]\([^)]*\)", "", text)


FILES = {  # that a reader has; the settings files are init's
    "rows.csv": "model,seq_len,accel,gpus,framework,tp,pp,mbs\nllama3_1_8b,8192,H100,8,torchtitan,1,1,1\n",
    "validate.json": json.dumps({
        "schema": "podwright.validate/1", "instance_type": "ml.g5.12xlarge", "pair_bus_gb_s": 4.5,
        "node_bus_gb_s": 20.0, "transports": ["socket"],
    }),
    "raw/texts.jsonl": "".join(f"{json.dumps({'text': text})}\n" for text in texts()),
}  # fmt: skip


def typed(line: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder, as in a shell of somebody who has neither account nor terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PODWRIGHT_"))}
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    home.mkdir(exist_ok=True)
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**kept, **own, "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a reader's folder: settings of a cluster and a run, texts, and a few files."""
    folder = tmp_path_factory.mktemp("reader")
    line = "podwright init --yes --model llama3_2_1b --tokens 1B --instance-type ml.g5.12xlarge"
    done = typed(line, folder, folder.with_name("home"))
    assert done.returncode == 0, done.stderr
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", to_run("alone"), ids=lambda block: f"{block.page}: {block.commands()[0]}")
def test_a_block_runs_alone(block: Block, prepared: Path, tmp_path: Path):
    """Each command of the block succeeds, one after the other, in a folder with settings."""
    for line in block.commands():
        done = typed(line, prepared, tmp_path / "home")
        assert done.returncode == block.status, f"$ {line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for block in to_run("apart") for line in block.commands()], ids=without_comment)
def test_a_line_runs_apart(line: str, tmp_path: Path):
    """Each command of the block succeeds in an empty folder of its own."""
    (tmp_path / "empty").mkdir()
    done = typed(line, tmp_path / "empty", tmp_path / "home")
    assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
