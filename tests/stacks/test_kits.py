"""Both kits: cdktf, and CDK Terrain, which continues it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podwright.errors import ArgumentError, OperationError
from podwright.operations.deployment.kit import find_program, install_command, kit_name
from podwright_constructs.kit_choice import KITS, VARIABLE

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = ("minimal", "production")
# One Node for both examples: it is what takes long.
PROGRAM = """
import sys
from pathlib import Path
from podwright.check.load import load
from podwright_stacks.app import synthesize
for example in sys.argv[2:]:
    synthesize(load(Path(example, "cluster.yaml")), Path(sys.argv[1], Path(example).name))
"""


def synthesized(kit: str, project: Path) -> dict[str, Any]:
    """Return a kit's output for the examples: JSON by file, with the kit's version as KIT."""
    examples = [REPOSITORY / "examples" / name for name in EXAMPLES]
    output = project / kit
    output.mkdir()
    environment = {**os.environ, VARIABLE: kit, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", PROGRAM, output, *examples], cwd=project, env=environment, check=True)
    version = f'"version": "{importlib.metadata.version(kit)}"'
    texts = {file.relative_to(output): file.read_text(encoding="utf-8") for file in output.rglob("*.json")}
    assert all(version in text for text in texts.values())
    return {str(name): json.loads(text.replace(version, '"version": "KIT"')) for name, text in texts.items()}


@pytest.mark.slow
def test_both_kits_write_the_same(tmp_path: Path):
    """The stacks and the manifest of two examples differ in the kit's version alone."""
    of_cdktf, of_cdktn = (synthesized(kit, tmp_path) for kit in KITS)
    assert len(of_cdktf) == 6
    assert of_cdktf == of_cdktn


def test_the_environment_chooses_the_kit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The commands use cdktf, or the kit that PODWRIGHT_KIT names, and say how to install the one that is missing."""
    monkeypatch.setattr("podwright.operations.deployment.kit.search_path", lambda: str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (kit_name(), install_command()) == ("cdktf", "podwright setup")
    monkeypatch.setenv(VARIABLE, "cdktn")
    with pytest.raises(OperationError, match="no cdktn on PATH") as missing:
        find_program()
    assert missing.value.hint == "run `PODWRIGHT_KIT=cdktn podwright setup`, or `npm install -g cdktn-cli`"
    (tmp_path / "cdktn").touch(mode=0o700)
    assert find_program() == str(tmp_path / "cdktn")


def test_an_unknown_kit_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A kit that there is not is one line, for the commands and for the app."""
    monkeypatch.setenv(VARIABLE, "cdk")
    line = "PODWRIGHT_KIT: got cdk, need cdktf or cdktn"
    with pytest.raises(ArgumentError, match=line):
        kit_name()
    answer = subprocess.run(
        [sys.executable, REPOSITORY / "main.py"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (1, f"{line}\n")


def test_an_app_on_the_other_kit_needs_no_variable(tmp_path: Path):
    """Constructs use the kit that the app imported before them."""
    code = "import cdktn; from podwright_constructs.kit import App; print(App is cdktn.App)"
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True\n"
