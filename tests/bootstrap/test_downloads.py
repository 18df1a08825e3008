"""The manifest, and how a file of it comes to a cluster."""

from __future__ import annotations

import hashlib
import http.server
import json
import platform
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.software import downloads

CONTENT = bytes(range(256)) * 1000


class Server(http.server.ThreadingHTTPServer):
    """Breaks off in the middle of the first answer, and goes on from any byte it is asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str | None] = []


class Answer(http.server.BaseHTTPRequestHandler):
    """One answer."""

    server: Server

    def do_GET(self) -> None:
        given = self.headers["Range"]
        self.server.asked.append(given)
        start = int(given.removeprefix("bytes=").removesuffix("-")) if given else 0
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start:] if given else CONTENT[: len(CONTENT) // 2])

    def log_message(self, *_: object) -> None:
        """Keep the terminal quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    """On a port of its own."""
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_download_that_breaks_off_goes_on_where_it_was(server, tmp_path, monkeypatch):
    """The second attempt asks for the bytes that lack, and the file is whole."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    part = tmp_path / "part"
    url = f"http://127.0.0.1:{server.server_port}/file"
    with pytest.raises(ConnectionError, match=f"{len(CONTENT) // 2} of {len(CONTENT)} bytes|broke off"):
        downloads.from_internet(url, part)
    downloads.from_internet(url, part)
    assert server.asked == [None, f"bytes={len(CONTENT) // 2}-"]
    assert hashlib.sha256(part.read_bytes()).digest() == hashlib.sha256(CONTENT).digest()


def test_manifest_names_for_each_file_where_its_checksum_was_published():
    """Every entry has what it is for, its licence, https, a sha256 and at least one source of it."""
    for name, entry in json.loads(downloads.MANIFEST.read_text()).items():
        assert set(entry) - {"wheels"} == {"version", "licence", "purpose", "files", "checksum_sources"}, name
        assert entry["checksum_sources"]
        for machine, file in entry["files"].items():
            assert machine in {"x86_64", "aarch64"}
            assert file["url"].startswith("https://")
            assert entry["version"] in file["url"]
            assert re.fullmatch("[0-9a-f]{64}", file["sha256"])
        for machine, wheel in entry.get("wheels", {}).items():
            assert machine in wheel["filename"]
            assert entry["version"] in wheel["filename"]
            assert re.fullmatch("[0-9a-f]{64}", wheel["sha256"])


@pytest.mark.parametrize(("machine", "word"), [("x86_64", "amd64|x86_64"), ("aarch64", "arm64|aarch64")])
def test_a_file_is_for_the_nodes_machine(machine, word, monkeypatch):
    """Whatever a machine is given says so in its address, unless it is source code; what it lacks is one line."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = {name: downloads.find(name) for name, files in downloads.manifest().items() if machine in files}
    sources = [name for name, file in found.items() if not re.search(word, file.url)]
    assert sources == ["pyxis", *(name for name in found if name.startswith("slurm-"))]
    missing = set(downloads.manifest()) - set(found)
    assert missing == (set(downloads.ENROOT) if machine == "aarch64" else set())
    for name in missing:
        with pytest.raises(BootstrapError, match=f"podwright has no checksum of {name} for {machine}"):
            downloads.find(name)


@pytest.mark.hosts
def test_one_node_fetches_for_all(make_host, cloud, finish):
    """Of two nodes that boot at once one downloads, and both have the program."""
    cloud.contract["podwright"]["nodes"] = {"observability": {}}
    hosts = [make_host(address=address, patience=1) for address in ("10.1.0.5", "10.1.0.57")]
    commands = "serve_releases /mnt/fsx/releases && ./on_create.sh --only observability"
    mounted = "mkdir -p /mnt/fsx && mount -t lustre fs@tcp:/abcdefgh /mnt/fsx && mkdir -p /mnt/fsx/podwright"
    # One release for both, so that a file of one host is right on the other.
    first = hosts[0].run(f"{mounted}\nserve_releases /mnt/fsx/releases")
    assert first.exit_code == 0, first.output
    boots = [finish(process) for process in [host.start(f"{mounted}\n{commands}") for host in hosts]]
    assert [boot.exit_code for boot in boots] == [0, 0], boots[0].output + boots[1].output
    served = "".join(host.read("opt/served.log") for host in hosts)
    assert served.count("GET /node_exporter") == 1
    programs = [next(host.disk.glob("opt/podwright/programs/*/node_exporter")) for host in hosts]
    assert {program.read_bytes() for program in programs} == {Path(hosts[0].shims / "node_exporter").read_bytes()}
