"""Tab in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from podwright.checkout import ROOT
from podwright_testing.terminal import Terminal

LIMIT_S = 600
ASK_BASH = """
source <(podwright completion bash)
while read -r COMP_LINE; do
    COMP_LINE=${COMP_LINE%.}
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMPREPLY=()
    _python_argcomplete "${COMP_LINE%% *}"
    echo "${COMPREPLY[*]}"
done
"""
ASK_FISH = """
podwright completion fish | source
while read line; echo (complete -C (string replace -r '\\\\.$' '' -- $line) | string split -f1 \\t | sort); end
"""
OFFERED = {
    "podwright nod": {"nodes"},
    "podwright nodes re": {"reboot", "replace"},
    "podwright nodes replace wor": {"workers/1", "workers/2"},
    "podwright scale wor": {"workers"},
    "podwright deploy --on": {"--only"},
    "podwright deploy --only ": {"cluster", "foundation"},
    "podwright completion ": {"bash", "fish", "zsh"},
    "podwright check clu": {"cluster.yaml"},
    "podwright-train consoli": {"consolidate"},
    "podwright-train train --lr-sched": {"--lr-schedule"},
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user's environment, with the example's settings file in the folder."""
    shutil.copy(ROOT / "cluster.yaml", tmp_path)
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize(("shell", "script"), [(["bash", "-c"], ASK_BASH), (["fish", "--no-config", "-c"], ASK_FISH)])
@pytest.mark.slow
def test_what_a_shell_offers(shell, script, environment, tmp_path):
    """Commands, verbs, flags, choices, files, and the groups and nodes of the settings file."""
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not installed")
    answer = subprocess.run(
        [*shell, script],
        input="".join(f"{line}.\n" for line in OFFERED),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    offered = [{word for word in line.split() if not word.startswith("-") or word.startswith(("--on", "--lr-"))}
               for line in answer.stdout.splitlines()]  # fmt: skip
    assert dict(zip(OFFERED, offered, strict=True)) == OFFERED, answer.stderr


@pytest.mark.parametrize(
    ("shell", "load"),
    [
        (["bash", "--norc", "-i"], "source <(podwright completion bash)"),
        (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u; source <(podwright completion zsh)"),
        (["fish", "--no-config", "-i"], "podwright completion fish | source"),
    ],
    ids=["bash", "zsh", "fish"],
)
def test_tab_completes_a_line(shell, load, environment, tmp_path):
    """In an interactive shell, two letters and Tab become the command."""
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not installed")
    with Terminal(shell, cwd=tmp_path, environment=environment) as terminal:
        terminal.type(f"{load}; echo rea''dy\n")
        terminal.wait_for("ready\n")
        terminal.type("podwright dr\t--help\n")
        terminal.wait_for("usage: podwright drift")


def test_a_wrong_file_offers_no_names(environment, tmp_path):
    """Whatever is wrong with the settings file, Tab prints no error."""
    for text in ("[", "cluster: 1", "cluster: {instance_groups: [1]}", "name: x"):
        (tmp_path / "cluster.yaml").write_text(text)
        done = subprocess.run(
            ["bash", "-c", ASK_BASH],
            input="podwright scale wor.\n",
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("\n", ""), text
