"""Run tasks of lm-evaluation-harness on an exported model, by its program in a separate environment.

It pins other versions of the trainer's packages, so it is started, never imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podwright_training import model_folder
from podwright_training.errors import UserError
from podwright_training.folder_listing import paths_below

PROGRAM = "lm_eval"
INSTALL = "uv tool install --with torch --with transformers --with accelerate lm-eval"
LAST_LINES = 5  # A failure's message shows the end of the output.


def run_tasks(
    model: Path, tasks: Sequence[str], *, program: str, include_path: Path | None, device: str, dtype: str
) -> dict[str, dict[str, float]]:
    """Return the numbers of each task by their names in the harness, as ``acc,none``.

    Args:
        model: folder of the exported model.
        tasks: names of tasks or groups.
        program: name or path of ``lm_eval``.
        include_path: folder of additional tasks, YAML files that may name local data.
        device: of torch.
        dtype: name of torch's type.

    Raises:
        UserError: There is no such program, or it failed.
    """
    program_path = shutil.which(program)
    if program_path is None:
        raise UserError(f"lm_eval: there is no {program} on PATH; {INSTALL}, or name the program with --lm-eval")
    with tempfile.TemporaryDirectory() as folder:
        arguments = json.dumps(  # a path may have commas
            {"pretrained": str(model), "dtype": dtype, "trust_remote_code": False, **_first_token(model)}
        )
        command = [
            *(program_path, "--model", "hf", "--model_args", arguments, "--device", device),
            *("--tasks", ",".join(tasks), "--output_path", folder),
            *(["--include_path", str(include_path)] if include_path else []),
        ]
        code = {"HF_DATASETS_TRUST_REMOTE_CODE": "0"}  # a task's dataset may not bring a script either
        environment = {**os.environ, **code, "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
        )
        results = paths_below(Path(folder), "results_*.json")
        if done.returncode or not results:
            last_lines = "\n".join((done.stdout + done.stderr).splitlines()[-LAST_LINES:])
            raise UserError(f"{program_path} failed with exit status {done.returncode}:\n{last_lines}")
        content = json.loads(results[-1].read_text())["results"]
    return {
        task: {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        for task, numbers in content.items()
    }


def _first_token(model: Path) -> dict[str, Any]:
    """Return the arguments by which the harness begins texts as the training did: behind another text, with BOS or not.

    It would begin them with the token that a tokenizer declares for it, which training without ``add_bos`` never shows.
    Its prefix is the end of the text before: the BOS that ``add_bos_token`` adds follows that. Models of other programs
    begin as the harness decides.
    """
    add_bos = model_folder.adds_bos(model)
    if add_bos is None:
        return {}
    from podwright_training.data.tokenizer import load_tokenizer

    return {"add_bos_token": add_bos, "prefix_token_id": load_tokenizer(str(model)).eos_token_id}
