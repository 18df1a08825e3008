"""The kill campaign of ``bench/``, in short."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_job_that_is_killed_six_times_loses_nothing():
    """SIGKILL at drawn moments, mostly while it saves: every start resumes by itself, every step is bit for bit."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "common"), str(ROOT / "training")]),
    }
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    campaign = subprocess.run(
        [sys.executable, ROOT / "bench" / "kill_campaign.py", "--kills", "6", "--ranks", "2", "--steps", "16"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert campaign.returncode == 0, campaign.stderr
    table = json.loads(campaign.stdout[campaign.stdout.index("{\n") :])
    assert table["kills"] == 6
    assert table["largest_difference_of_loss"] == 0.0
