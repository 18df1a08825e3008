"""The jobs that ``podwright cancel`` chooses."""

from __future__ import annotations

import pytest

from podwright.errors import ArgumentError
from podwright.operations.jobs.cancel import _named_jobs
from podwright.operations.jobs.slurm_jobs import Job

MINE, THEIRS = 2001, 2002


def job(number: str, *, user_id: int, run: str = "") -> Job:
    """Return a job that runs."""
    return Job(number, "name", "user", "gpu", "RUNNING", "1:00", "UNLIMITED", 1, run, "n1", user_id)


def test_a_name_cancels_jobs_of_the_user_alone() -> None:
    """Every user may name a job after another's run; a number is a choice."""
    jobs = [job("1", user_id=MINE, run="llama"), job("2", user_id=THEIRS, run="llama"), job("3_1", user_id=THEIRS)]
    for word, numbers in (("llama", ["1"]), ("name", ["1"]), ("2", ["2"]), ("3", ["3_1"])):
        assert [each.job_id for each in _named_jobs(jobs, [word], "demo", user_id=MINE)] == numbers
    with pytest.raises(ArgumentError, match="demo has no job llama"):
        _named_jobs(jobs[1:], ["llama"], "demo", user_id=MINE)
