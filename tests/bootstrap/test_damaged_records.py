"""Programs that read what a boot left on the node: a damaged file is a line to each, never a traceback."""

from __future__ import annotations

import json
from random import Random

import pytest

from podwright_testing.mutations import mutated_bytes

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

MUTATIONS = 300
FILES = ("opt/podwright/node.json", "opt/podwright/bootstrap.json", "opt/ml/config/provisioning_parameters.json")
# On the host: each reader's own main, after each accident to one of the files.
READ = """
import contextlib, importlib, io, json, os, sys, traceback
from pathlib import Path

from podwright_bootstrap import boot

READERS = {  # and what they read
    "slurm.prolog": ("node.json", "provisioning_parameters.json"),
    "slurm.epilog": ("provisioning_parameters.json",),
    "remediation.report": ("node.json", "provisioning_parameters.json"),
    "remediation.act": ("provisioning_parameters.json",),
    "software.old_environments": ("node.json",),
    "storage.user_folders": ("node.json", "provisioning_parameters.json"),
}
modules = {name: importlib.import_module(f"podwright_bootstrap.{name}") for name in READERS}
os.environ.update(SLURM_JOB_ID="7", SLURM_JOB_UID="54321", SLURMD_NODENAME="here")  # nobody's: nothing is cleared away
texts = [(path, bytes.fromhex(text)) for path, text in json.loads(Path("/opt/mutations.json").read_text())]
good = {path: Path("/", path).read_bytes() for path, _ in texts}
counts = {}

def note(name, read):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            ended = read()
    except BaseException:  # of whichever kind: the test shows it, and SystemExit too
        print("ENDED BY", name, traceback.format_exc(), sep="\\n")
        ended = "traceback"
    counts.setdefault(name, {}).setdefault(ended, 0)
    counts[name][ended] += 1

for path, text in texts:
    for other, content in good.items():
        Path("/", other).write_bytes(content)
    Path("/", path).write_bytes(text)
    for name, files in READERS.items():
        if Path(path).name in files:
            sys.argv = [name, "1000"]
            note(name, modules[name].main)
    if Path(path).name == "bootstrap.json":
        note("status", lambda: boot.main(["--status"]))
print("COUNTS", json.dumps(counts))
"""


def test_damaged_files_of_a_node_end_no_program_that_reads_them(make_host, cloud):
    """Prolog, epilog, remediation, timers and --status answer whatever the node's three files have become."""
    cloud.contract["podwright"]["nodes"] = {"prolog": {}, "remediation": {}, "containers": {"shared_cache": True}}
    host = make_host(patience=0.02)
    made = host.run("for step in lustre parameters node_record; do ./on_create.sh --only $step || exit; done")
    assert made.exit_code == 0, made.output
    random = Random(0)  # noqa: S311 (repeatable accidents)
    contents = [json.loads(host.read(path)) for path in FILES]
    mutations = [
        (FILES[number % len(FILES)], mutated_bytes(contents[number % len(FILES)], random).hex())
        for number in range(MUTATIONS)
    ]
    host.write("opt/mutations.json", json.dumps(mutations))
    host.write("opt/read.py", READ)
    done = host.run("mount -t tmpfs tmpfs /run && PYTHONPATH=/opt/scripts python3 /opt/read.py")
    assert done.exit_code == 0, done.output
    assert "ENDED BY" not in done.output, done.output
    counts = json.loads(done.output.rpartition("COUNTS ")[2])
    each = MUTATIONS // len(FILES)
    assert {name: sum(ended.values()) for name, ended in counts.items()} == {
        **dict.fromkeys(("slurm.prolog", "remediation.report", "storage.user_folders"), 2 * each),
        **dict.fromkeys(("slurm.epilog", "remediation.act", "software.old_environments", "status"), each),
    }
    assert counts["slurm.epilog"] == {"0": each}  # a job's end drains no node
