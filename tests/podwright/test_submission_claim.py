"""Two submissions of one run side by side: the files are those of the one that gets a job."""

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from podwright.operations.access.remote import quoted
from podwright.operations.jobs.upload import unpacking

TRAINER = Path(sys.executable).with_name("podwright-train")
SBATCH = "#!/bin/sh\ntouch {folder}/asked\nsleep 2\necho submitted >> {folder}/jobs\nwc -l < {folder}/jobs\n"
SQUEUE = f"""#!/bin/sh
mark=${{{{SQUEUE_FORMAT2##*:}}}}
printf "%s$mark" {os.geteuid()} PENDING first
"""


def _archive(content):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        item = tarfile.TarInfo("run.yaml")
        item.size = len(content)
        archive.addfile(item, io.BytesIO(content))
    return stream.getvalue()


def _environment(folder):
    """Return an environment with stand-ins for the two commands of Slurm that a submission needs."""
    (folder / "bin").mkdir()
    for name, script in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        path = folder / "bin" / name
        path.write_text(script.format(folder=folder))
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def _start(line, environment, content):
    """Start a submission of one file."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(["sh", "-c", line], env=environment, **pipes)
    process.stdin.write(_archive(content))
    process.stdin.close()
    process.stdin = None
    return process


def test_one_submission_places_its_files(tmp_path):
    """The other changes nothing: one line names the job that has the run."""
    run = tmp_path / "first"
    launch = quoted(str(TRAINER), "launch", f"--run-dir={run}", "--nodes=1", "--nproc-per-node=1", "--accelerator=cpu")
    line = unpacking(str(run), ["run.yaml"], launch, trainer=str(TRAINER))
    environment, contents = _environment(tmp_path), (b"lr: 0.1\n", b"lr: 0.2\n")
    first = _start(line, environment, contents[0])
    while first.poll() is None and not (tmp_path / "asked").exists():
        time.sleep(0.01)
    second = _start(line, environment, contents[1])  # while Slurm has not answered the first
    outputs = [process.communicate() for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 2), outputs
    assert (run / "run.yaml").read_bytes() == contents[0]
    assert (tmp_path / "jobs").read_text().count("submitted") == 1
    assert "error: run first belongs to job 1, submitted " in outputs[1][1].decode()
    assert not list(run.glob(".incoming*"))


def test_files_of_a_batch_script_are_placed_as_before(tmp_path):
    """Without a trainer on the node nothing is claimed, and a failing command is the line's status."""
    line = unpacking(str(tmp_path / "first"), ["run.yaml"], "cat run.yaml; exit 7")
    done = subprocess.run(["sh", "-c", line], input=_archive(b"#!/bin/sh\n"), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"#!/bin/sh\n")
