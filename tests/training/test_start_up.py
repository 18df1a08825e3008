"""The work of a rank before a job starts does not grow with the number of ranks: the first looks, for all."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from podwright_testing.hugging_face_hub import Hub
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.data import storage, token_shards
from podwright_training.data.splits import SAMPLES
from podwright_training.data.storage import shared_listings
from podwright_training.data.token_shards import write_token_shard
from podwright_training.data.tokenizer import Encoder, load_for_all_ranks, load_tokenizer
from podwright_training.job_store import JobStore
from podwright_training.loop import preflight
from podwright_training.ranks import Ranks
from podwright_training.run_folder import RunFolder

RANKS, STREAMS, SHARDS = 3, 6, 24
NAME = "someone/words"


def test_only_the_first_rank_looks_at_every_shard_and_checkpoint(run_ranks, undisturbed, word_tokenizer, tmp_path):
    """Others list and sample no shards, open them before the ranks connect, and no file of a checkpoint's tensors."""
    tokenizer = tmp_path / "tokenizer"
    word_tokenizer.save_pretrained(tokenizer)
    digest = Encoder(load_tokenizer(str(tokenizer))).digest
    (tmp_path / "tokens").mkdir()
    documents = [np.array([1, 2, 3, 0], dtype=np.uint32)] * 40
    names = [f"train-{number:05}.safetensors" for number in range(SHARDS)]
    for name in [*names, *(f"validation-{number}.safetensors" for number in range(STREAMS))]:
        write_token_shard(tmp_path / "tokens" / name, documents, tokenizer=digest)
    shutil.copytree(undisturbed, tmp_path / "run")

    run_ranks(__file__, tmp_path, "files", ranks=RANKS)
    found = [json.loads((tmp_path / f"touched-{rank}").read_text()) for rank in range(RANKS)]
    for counts in found:  # streams read pieces of many shards, so ranks open those, and none more often than another
        assert max(counts["opened"].values()) <= found[0]["most"]
        assert not set(counts["opened again"]) & set(names)
    assert found[0]["sampled"] == dict.fromkeys(names, SAMPLES)
    for counts in found[1:]:
        assert counts["sampled"] == counts["listed"] == {}
        assert not [name for name in counts["checkpoint"] if name.endswith(".distcp")]
    assert [name for name in found[0]["checkpoint"] if name.endswith(".distcp")]


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["shared", "of each host"])
def test_the_hub_is_asked_by_one_rank_for_all(run_ranks, word_tokenizer, tmp_path, cache):
    """Of ranks that share a cache only the first sends requests; a host with its own asks for the same revision."""
    word_tokenizer.save_pretrained(tmp_path / "hub")
    asked = Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tmp_path / "hub", NAME, asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        run_ranks(__file__, tmp_path, "hub", str(server.server_port), cache, ranks=RANKS)
    finally:
        server.shutdown()
        server.server_close()
    digests = {(tmp_path / f"digest-{rank}").read_text() for rank in range(RANKS)}
    assert len(digests) == 1
    assert {rank for rank, _ in asked} == ({"0"} if cache == "shared" else {"0", "1", "2"})


def _files(folder, ranks):
    """Run the checks of a new run and of one with checkpoints; write which files this rank touched."""
    new = TrainConfig(
        run_dir=str(folder / "new"), dataset=str(folder / "tokens"), dataset_config_name=None,
        tokenizer=str(folder / "tokenizer"), vocab_size=1000, hidden_size=32, intermediate_size=48, num_layers=2,
        num_heads=4, num_key_value_heads=2, max_context_width=8, data_streams=STREAMS, validation_sequences=6,
        device="cpu", bf16=False, data_workers=0,
    )  # fmt: skip
    old = load_run(RunFolder(folder / "run"))
    store = JobStore(ranks, b"secret", timeout_s=500)
    found = {}
    with shared_listings(store.of_first_rank):
        with _counting(found):
            tokenizer = preflight.check(new, ranks, of_first_rank=store.of_first_rank)
        opened = found["opened"]
        with _counting(found):
            data = preflight.open_data(new, tokenizer, data_rank=ranks.rank, data_shards=RANKS, checked=True)
            data.training.state_dict()
        again, seen = found["opened"], {}
        with _counting(seen):
            preflight._newest_checkpoint(old, store.of_first_rank)
    counts = {"opened": opened, "opened again": again, "checkpoint": seen["sizes"]}
    counts |= {"sampled": found["all sampled"], "listed": found["all listed"], "most": max(opened.values())}
    (folder / f"touched-{ranks.rank}").write_text(json.dumps(counts))
    _wait_for_all(folder, ranks)


@contextmanager
def _counting(found):
    """Count by name: token shards opened, files whose size is asked, files sampled, folders listed."""
    opened, sizes, sampled, listed = Counter(), Counter(), Counter(), Counter()
    safe_open, stat, pieces, below = token_shards.safe_open, Path.stat, storage.os.pread, storage.files_below

    def counted_open(path, **options):
        opened[Path(path).name] += 1
        return safe_open(path, **options)

    def counted_stat(path, **options):
        sizes[path.name] += 1
        return stat(path, **options)

    def counted_pread(file, *arguments):
        sampled[Path(f"/proc/self/fd/{file}").readlink().name] += 1
        return pieces(file, *arguments)

    def counted_below(folder):
        listed[str(folder)] += 1
        return below(folder)

    with (
        mock.patch.object(token_shards, "safe_open", counted_open),
        mock.patch.object(Path, "stat", counted_stat),
        mock.patch.object(storage.os, "pread", counted_pread),
        mock.patch.object(storage, "files_below", counted_below),
    ):
        yield
    found |= {"opened": opened, "sizes": sizes}
    found["all sampled"] = found.get("all sampled", Counter()) + sampled
    found["all listed"] = found.get("all listed", Counter()) + listed


def _wait_for_all(folder, ranks):
    """The first rank's store must last until the others have read it."""
    (folder / f"done-{ranks.rank}").touch()
    while len(list(folder.glob("done-*"))) < RANKS:
        time.sleep(0.01)


def _hub(folder, ranks, port, cache):
    """Load the tokenizer in a process that takes this rank's requests for a hub at an address of its own."""
    home = folder / ("cache" if cache == "shared" else f"cache-{ranks.rank}")
    address = {"HF_ENDPOINT": f"http://127.0.0.1:{port}/rank-{ranks.rank}", "HF_HOME": str(home)}
    address |= {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300"}  # this hub shares its machine
    subprocess.run([sys.executable, __file__, str(folder), "load"], env={**os.environ, **address}, check=True)


def _load(folder, ranks):
    store = JobStore(ranks, b"secret", timeout_s=500)
    tokenizer = load_for_all_ranks(NAME, store.of_first_rank)
    (folder / f"digest-{ranks.rank}").write_text(Encoder(tokenizer).digest)
    _wait_for_all(folder, ranks)


if __name__ == "__main__":
    where, what, *more = sys.argv[1:]
    {"files": _files, "hub": _hub, "load": _load}[what](Path(where), Ranks.from_environment(), *more)
