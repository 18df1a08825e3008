"""Code that a model or tokenizer folder brings along is refused in one line, and never runs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright_training.data.byte_level_bpe import train

LOADERS = {"from_pretrained", "from_config", "load_dataset", "HFLM", "pipeline"}
PRODUCT = ("bench", "examples", "podwright", "rehearsal", "tools", "training")
CODE = "open({ran!r}, 'w').close()\nfrom transformers import PreTrainedTokenizerFast as Own\n"


def calls_without(source: str) -> list[int]:
    """Return the lines of calls that load with Hugging Face's libraries and do not refuse code."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in LOADERS
        and not any(
            word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in node.keywords
        )
    ]


def test_every_call_of_hugging_face_refuses_code():
    """No program of the product loads anything without ``trust_remote_code=False``: the default asks on a terminal."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in calls_without(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
    assert calls_without("AutoTokenizer.from_pretrained(name)\nload_dataset(name, trust_remote_code=True)") == [1, 2]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Return a tokenizer's folder whose code would leave the file ``ran``."""
    folder = tmp_path / "tokenizer"
    train(["a few words of text"] * 8, folder, vocab_size=300)
    settings = folder / "tokenizer_config.json"
    changed = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **changed}))
    (folder / "own.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    return folder


def run(code: str, *words: Path) -> subprocess.CompletedProcess[str]:
    """Run code as a user at a terminal who agrees to everything."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, input="y\n" * 9, capture_output=True, text=True, check=False, timeout=120)


REPORT = "except UserError as error:\n    print(error)\n"
LOAD_TOKENIZER = f"""import sys
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.errors import UserError
try:
    load_tokenizer(sys.argv[1])
{REPORT}"""
LOAD_MODEL = f"""import sys
from pathlib import Path
from podwright_training.errors import UserError
from podwright_training.transformers_model import load_model
try:
    load_model(Path(sys.argv[1]))
{REPORT}"""
READ_CONFIG = """import sys
from pathlib import Path
from podwright_training.checkpoint.hugging_face import HuggingFaceModel
from podwright_training.config.train_config import TrainConfig
print(*HuggingFaceModel(Path(sys.argv[1])).problems(TrainConfig().model), sep="\\n")
"""


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Check that one line names the folder, that nobody was asked, and that no code ran."""
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert f"{folder} needs Python code of its own" in line
    assert "Do you wish" not in done.stdout + done.stderr
    assert not (folder.parent / "ran").exists()


@pytest.mark.slow
def test_a_tokenizer_with_code_is_refused(tokenizer):
    """The trainer's own loader names the folder, and does not ask whether to run its code."""
    assert_refused(run(LOAD_TOKENIZER, tokenizer), tokenizer)


@pytest.mark.slow
def test_a_model_folder_whose_tokenizer_has_code_is_refused(tokenizer):
    """``generate`` and ``evaluate`` refuse a model's folder that has a tokenizer with code."""
    (tokenizer / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert_refused(run(LOAD_MODEL, tokenizer), tokenizer)


@pytest.mark.slow
def test_a_configuration_with_code_is_refused(tmp_path):
    """``init_from`` refuses a model of an architecture that its folder defines."""
    folder = tmp_path / "model"
    folder.mkdir()
    content = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "own.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    assert_refused(run(READ_CONFIG, folder), folder)
