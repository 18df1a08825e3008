"""The first rank of a job lists a remote dataset, for all ranks."""

import os
import sys
import time
from pathlib import Path

import pytest

from podwright_training import job_store
from podwright_training.data import remote
from podwright_training.data.bad_data import DataError
from podwright_training.data.storage import list_files, shared_listings
from podwright_training.errors import LostRanksError
from podwright_training.job_store import JobStore
from podwright_training.ranks import Ranks

RANKS = 3


def test_the_store_is_listed_once_for_all_ranks(run_ranks, tmp_path):
    """Every rank has the files, and its errors, of the one listing of each dataset, however often it asks."""
    run_ranks(__file__, tmp_path, ranks=RANKS)
    listed = sorted(path.name for path in tmp_path.glob("listed-*"))
    assert listed == ["listed-0-one", "listed-0-two"]
    found = {path.read_text() for path in tmp_path.glob("found-*")}
    assert len(list(tmp_path.glob("found-*"))) == RANKS
    assert found == {"{'a': 'hf://a'} dataset 'owner/two': no local folder"}


@pytest.mark.slow
def test_a_first_rank_that_is_gone_is_no_error_of_the_user(run_ranks, tmp_path):
    """Others fail as ranks do that lost a peer: an elastic run would end for good with an error of the user."""
    run_ranks(__file__, tmp_path, "gone", ranks=RANKS)
    assert {path.read_text() for path in tmp_path.glob("lost-*")} == {
        "LostRanksError: the first rank is gone before it shared contents; see its error"
    }
    assert len(list(tmp_path.glob("lost-*"))) == RANKS - 1


def _gone(folder):
    ranks = Ranks.from_environment()
    job_store.GRACE_S = 0
    store = JobStore(ranks, b"secret", timeout_s=500)
    store.of_first_rank("first", dict)
    (folder / f"heard-{ranks.rank}").touch()
    if ranks.rank == 0:
        while len(list(folder.glob("heard-*"))) < RANKS:
            time.sleep(0.01)
        os._exit(0)
    try:
        store.of_first_rank("contents", dict)
    except LostRanksError as error:
        (folder / f"lost-{ranks.rank}").write_text(f"{type(error).__name__}: {error}")


def _rank(folder):
    ranks = Ranks.from_environment()

    def list_hub(dataset, _folder):
        (folder / f"listed-{ranks.rank}-{dataset.removeprefix('owner/')}").touch(exist_ok=False)
        if dataset == "owner/two":
            raise DataError("dataset 'owner/two': no local folder")
        return {"a": "hf://a"}

    remote.list_hub = list_hub
    store = JobStore(ranks, b"secret", timeout_s=500)  # the first rank's holds what the others read
    with shared_listings(store.of_first_rank):
        files = [list_files("owner/one") for _ in range(4)][-1]
        try:
            list_files("owner/two")
        except DataError as error:
            (folder / f"found-{ranks.rank}").write_text(f"{files} {error}")
    (folder / f"done-{ranks.rank}").touch()
    while len(list(folder.glob("done-*"))) < RANKS:
        time.sleep(0.01)


if __name__ == "__main__":
    (_gone if sys.argv[2:] else _rank)(Path(sys.argv[1]))
