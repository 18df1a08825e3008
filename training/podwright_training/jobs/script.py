"""Render the script that starts a job's program on a node.

srun runs the script at each start of the step, so it finds the newest checkpoint also after HyperPod's auto-resume.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from podwright_training import shell_templates
from podwright_training.jobs.spec import JobSpec, Resume, fill

TEMPLATE = Path(__file__).parents[1] / "slurm" / "start.sh.jinja"
_CHECKPOINT = "{checkpoint}"


def start_script(spec: JobSpec, values: Mapping[str, object], *, environment: Path, accelerator: str = "") -> str:
    """Return the script.

    Args:
        spec: The job.
        values: What stands for ``{run_dir}`` and the other places.
        accelerator: Kind that nodes have; none on CPUs.
        environment: Virtual environment of podwright-train, whose programs are found if the job names no other one and
            no container.
    """
    run_dir, path = Path(str(values["run_dir"])), spec.environment or str(environment)
    return shell_templates.render(
        TEMPLATE,
        spec=spec,
        accelerator=accelerator,
        python=shlex.quote(str(environment / "bin" / "python")),
        run_dir=shlex.quote(str(run_dir)),
        path="" if spec.container else shlex.quote(f"{path}/bin"),
        env={name: shlex.quote(fill(text, values)) for name, text in spec.env.items()},
        secrets={name: shlex.quote(str(Path(path).expanduser())) for name, path in spec.secrets.items()},
        ranks_per_node=values["ranks_per_node"],
        command=shlex.join(fill(word, values) for word in spec.command),
        find=_find(spec.resume, run_dir, values) if spec.resume else "",
        resume=_resume(spec.resume, values) if spec.resume else "",
    )


def _find(resume: Resume, run_dir: Path, values: Mapping[str, object]) -> str:
    """Return the command that prints the checkpoints, each by its folder."""
    folder = run_dir / fill(resume.folder, values)
    if resume.complete:
        pattern = f"{folder}/{resume.newest}/{resume.complete}"
        return shlex.join(
            ["find", str(folder), "-mindepth", "2", "-maxdepth", "2", "-path", pattern, "-printf", "%h\\n"]
        )
    return shlex.join(["find", str(folder), "-mindepth", "1", "-maxdepth", "1", "-name", resume.newest])


def _resume(resume: Resume, values: Mapping[str, object]) -> str:
    """Return the words of the argument, with the shell's variable in place of ``{checkpoint}``."""
    words = (shlex.quote(fill(word, values)) for word in resume.argument)
    return " ".join(word.replace(_CHECKPOINT, "'\"$checkpoint\"'") for word in words)
