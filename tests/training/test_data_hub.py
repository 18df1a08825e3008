"""The packed stream reads a dataset of the Hugging Face hub as it reads a folder."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from podwright_training.data.bad_data import DataError
from podwright_training.data.splits import find_split

DRAW = """
import sys
from podwright_training.data import remote
from podwright_training.data.mixture import Source
from podwright_training.data.stream import PackedStream
remote.RETRY_DELAYS_S = (0.01,) * 3
for dataset in sys.argv[1:-1]:
    dataset, _, name = dataset.partition(":")
    stream = PackedStream([Source(name="prose", dataset=dataset, dataset_config_name=name or "en")], split="train",
                          tokenizer=sys.argv[-1], context_width=6, rank=0, world_size=1, local_batch_size=40, streams=2)
    print(stream.next_batch().tokens_BT.tolist())
"""


REVISION = "0" * 40
CARD = """---
configs:
- config_name: first
  data_files: [{split: train, path: [en/c4-train.00000*, en/c4-train.00001*]}]
- config_name: second
  data_files: [{split: train, path: en/c4-train.00002*}]
---
# Prose
"""


class Hub(BaseHTTPRequestHandler):
    """The three parts of the hub's API that reading needs: a dataset's facts, a folder's files, a file's bytes."""

    def __init__(self, folder, *args) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        """Answer for the dataset ``someone/prose`` only, in any revision."""
        path = urlsplit(self.path).path
        api, files = "/api/datasets/someone/prose", "/datasets/someone/prose/resolve/"
        if path in {api, f"{api}/revision/main", f"{api}/revision/{REVISION}"}:
            self._answer(json.dumps({"id": "someone/prose", "sha": REVISION, "siblings": [], "tags": []}).encode())
        elif path.startswith(f"{api}/tree/"):
            self._list(unquote(path).removeprefix(f"{api}/tree/").partition("/")[2])
        elif path.startswith(files) and (self.folder / path.removeprefix(files).partition("/")[2]).is_file():
            self._answer((self.folder / path.removeprefix(files).partition("/")[2]).read_bytes())
        else:
            self._answer(b"", status=404)

    def do_HEAD(self):
        """The same without the content."""
        self.do_GET()

    def _list(self, folder):
        """The files in a folder; at the top, ``en`` and the card."""
        if folder == "en":
            shards = sorted((self.folder / "en").iterdir())
            found = [
                {"type": "file", "path": f"en/{f.name}", "size": f.stat().st_size, "oid": "0" * 40} for f in shards
            ]
        else:
            found = [{"type": "directory", "path": "en", "oid": "0" * 40}]
        if folder in {"", "en"}:
            self._answer(json.dumps(found).encode())
        else:
            self._answer(b"", status=404)

    def _answer(self, content, status=200):
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            content, status = content[first : last + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound" if "someone/prose" in self.path else "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        """Stay silent."""


@pytest.fixture
def folder(tmp_path):
    """A dataset of three shards, and a tokenizer beside it."""
    (tmp_path / "en").mkdir()
    (tmp_path / "README.md").write_text(CARD)
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


@pytest.mark.slow
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
    assert "dataset 'someone/else': no local folder, and the Hugging Face hub does not serve" in done.stderr


@pytest.mark.slow
def test_a_configuration_of_the_card(draw, folder):
    """A name that is no folder is looked up in the dataset's card, on the hub as in a folder."""
    done = draw("someone/prose:first", f"{folder}:first", "someone/prose:second")
    assert done.returncode == 0, done.stderr
    hub, local, other = map(json.loads, done.stdout.splitlines())
    assert hub == local
    assert {token for row in hub for token in row} == {0, 1, 2}
    assert {token for row in other for token in row} == {0, 3}


def test_an_unknown_configuration(folder):
    """One line lists the existing configurations."""
    with pytest.raises(DataError, match=r"neither a folder in it nor a configuration in its card .*'first', 'second'"):
        find_split(str(folder), "third", "train")
