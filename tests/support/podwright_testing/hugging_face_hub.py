"""A stand-in for the Hugging Face hub on loopback."""

import json
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

CODES = {401: "GatedRepo", 404: "EntryNotFound"}


class Hub(BaseHTTPRequestHandler):
    """Serves one tokenizer under a prefix that names the rank, and counts who asks for what.

    With a token it is gated: only requests with that token get anything below its name.
    """

    revision = "0" * 40

    def __init__(self, folder: Path, name: str, asked: Counter[tuple[str, str]], *args: Any, token: str = "") -> None:
        self.folder, self.name, self.asked, self.token = folder, name, asked, token
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer with the model's facts, the list of its files, or a file."""
        rank, _, path = self.path.split("?")[0].removeprefix("/rank-").partition("/")
        self.asked[rank, path] += 1
        api = f"api/models/{self.name}"
        files = sorted(file.name for file in self.folder.iterdir())
        name = path.rpartition("/")[2]
        if self.token and self.name in path and self.headers["Authorization"] != f"Bearer {self.token}":
            self._answer(b"", status=401)
        elif path in {api, f"{api}/revision/main", f"{api}/revision/{self.revision}"}:
            facts = {
                "id": self.name,
                "sha": self.revision,
                "tags": [],
                "siblings": [{"rfilename": file} for file in files],
            }
            self._answer(json.dumps(facts).encode())
        elif path.startswith(f"{api}/tree/") and path.count("/") == api.count("/") + 2:
            of_files = [{"type": "file", "path": file, "size": 1, "oid": self.revision} for file in files]
            self._answer(json.dumps(of_files).encode())
        elif path.startswith(f"{self.name}/resolve/") and name in files:
            self._answer((self.folder / name).read_bytes())
        else:
            self._answer(b"", status=404)

    def do_HEAD(self) -> None:
        """The same without the content."""
        self.do_GET()

    def _answer(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:08x}"')
        self.send_header("X-Repo-Commit", self.revision)
        if status in CODES:
            self.send_header("X-Error-Code", CODES[status])
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay silent."""
