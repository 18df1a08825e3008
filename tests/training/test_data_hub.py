"""The packed stream reads a dataset of the Hugging Face hub as it reads a folder."""

import gzip
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

DRAW = """
import sys
from podwright_training.data import PackedStream
for dataset in sys.argv[1:-1]:
    stream = PackedStream(dataset=dataset, dataset_config_name="en", split="train", tokenizer=sys.argv[-1],
                          context_width=6, rank=0, world_size=1, local_batch_size=40, streams=2)
    print(stream.next_batch().tolist())
"""


class Hub(BaseHTTPRequestHandler):
    """The three parts of the hub's API that reading needs: a dataset's facts, a folder's files, a file's bytes."""

    def __init__(self, folder, *args) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        """Answer for the dataset ``someone/prose`` only."""
        path = urlsplit(self.path).path
        if path.startswith("/api/datasets/someone/prose/tree/main/en"):
            shards = sorted((self.folder / "en").iterdir())
            files = [
                {"type": "file", "path": f"en/{f.name}", "size": f.stat().st_size, "oid": "0" * 40} for f in shards
            ]
            self._answer(json.dumps(files).encode())
        elif path.startswith("/api/datasets/someone/prose/tree/main"):
            self._answer(json.dumps([{"type": "directory", "path": "en", "size": 0, "oid": "0" * 40}]).encode())
        elif path == "/api/datasets/someone/prose":
            self._answer(json.dumps({"id": "someone/prose", "sha": "0" * 40, "siblings": [], "tags": []}).encode())
        elif path.startswith("/datasets/someone/prose/resolve/main/"):
            self._answer((self.folder / path.removeprefix("/datasets/someone/prose/resolve/main/")).read_bytes())
        else:
            self._answer(b"", status=404)

    def _answer(self, content, status=200):
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            content, status = content[first : last + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Stay silent."""


@pytest.fixture
def folder(tmp_path):
    """A dataset of three shards, and a tokenizer beside it."""
    (tmp_path / "en").mkdir()
    for shard in range(3):
        texts = [" ".join(["abc"[shard]] * (5 + number)) for number in range(9)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / "en" / f"c4-train.0000{shard}-of-01024.json.gz").write_bytes(gzip.compress(lines.encode()))
    model = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2, "c": 3}, unk_token="<end>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>").save_pretrained(tmp_path / "tokenizer")
    return tmp_path


@pytest.fixture
def draw(folder, tmp_path_factory):
    """Draws a batch of each dataset in a process whose hub is ours: the endpoint is read when libraries are loaded."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = {
        **os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path_factory.mktemp("home")), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip

    def run(*datasets):
        command = [sys.executable, "-c", DRAW, *datasets, str(folder / "tokenizer")]
        return subprocess.run(command, env=here, capture_output=True, text=True, check=False)

    yield run
    server.shutdown()
    server.server_close()


def test_hub_and_folder_give_the_same(draw, folder):
    """A dataset's identifier and its copy in a folder give the same tokens."""
    done = draw("someone/prose", str(folder))
    assert done.returncode == 0, done.stderr
    hub, local = done.stdout.splitlines()
    assert hub == local
    assert {token for row in json.loads(hub) for token in row} == {0, 1, 2, 3}


def test_unknown_dataset(draw):
    """A dataset the hub does not know is named, with the hub's answer."""
    done = draw("someone/else")
    assert done.returncode == 1
    assert "dataset 'someone/else': no folder of that name here, and the Hugging Face hub does not give" in done.stderr
