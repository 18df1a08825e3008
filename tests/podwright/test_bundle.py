"""``podwright bundle``: real packages from the index, programs from a server here, uploaded to the AWS stand-in."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwright import checkout
from podwright.cli import main
from podwright.operations.deployment import offline_bundle
from podwright.settings.root import Settings
from podwright_bootstrap.software import downloads
from podwright_rehearsal.aws import AwsStandIn

EXAMPLE = Path(__file__).parents[2] / "examples" / "minimal" / "cluster.yaml"
FEATURES = {"observability": {}, "containers": {}, "downloads": {"source": "bundle"}}
BUCKET = "sagemaker-mine"
ENTRIES = checkout.REQUIREMENTS_LOCK.read_text().replace("\\\n", "\\ ").splitlines()


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account with a bucket."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), region="us-west-2") as stand_in:
        where = {"LocationConstraint": "us-west-2"}
        stand_in.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        yield stand_in


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Files as the programs' pages serve them, and their manifest with the real one's names."""
    folder = tmp_path / "releases"
    folder.mkdir()
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        entries = {name: release(folder, name, server.server_port) for name in downloads.manifest()}
        manifest = tmp_path / "downloads.json"
        manifest.write_text(json.dumps(entries))
        monkeypatch.setattr(downloads, "MANIFEST", manifest)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield folder
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Keep the terminal quiet."""


def release(folder: Path, name: str, port: int) -> dict[str, Any]:
    """A file of a program, for one kind of processor, and its entry."""
    (folder / f"{name}.tar.gz").write_bytes(name.encode() * 1000)
    sha256 = hashlib.sha256(name.encode() * 1000).hexdigest()
    return {"files": {"x86_64": {"url": f"http://127.0.0.1:{port}/{name}.tar.gz", "sha256": sha256}}}


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the training program's locked requirements the smallest that depend on Python, system and processors."""
    wanted = ("annotated-doc==", "colorama==", "markupsafe==")
    path = tmp_path / "requirements.lock"
    path.write_text("\n".join(entry for entry in ENTRIES if entry.startswith(wanted)).replace("\\ ", "\\\n") + "\n")
    monkeypatch.setattr(checkout, "REQUIREMENTS_LOCK", path)
    return path


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A cluster in a bucket that exists."""
    content = yaml.safe_load(EXAMPLE.read_text())
    content |= {"name": "demo", "bucket": {"source": "existing", "name": BUCKET}, "nodes": FEATURES}
    (tmp_path / "packages.lock").write_text(
        "".join(entry.replace("\\ ", "") + "\n" for entry in ENTRIES if entry.startswith("idna=="))
    )
    content["training"] = {"source": "bundled", "requirements": "packages.lock"}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.usefixtures("releases", "lock")
@pytest.mark.slow
def test_a_bundle_is_made_checked_and_uploaded_once(aws, settings_file, tmp_path, monkeypatch, capsys):
    """Programs, wheels for the nodes' Python and an index lie where nodes look; a second run sends the index alone."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    command = ["bundle", str(settings_file), "-o", str(tmp_path / "bundle"), "--upload"]
    assert main(command) == 0, capsys.readouterr().err
    first = capsys.readouterr().out
    assert main(command) == 0
    assert "uploaded 1 of 13 objects" in capsys.readouterr().out
    assert "uploaded 13 of 13 objects to s3://sagemaker-mine/demo/bundle" in first
    client = aws.client("s3")
    stored = {item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix="demo/bundle/")["Contents"]}
    names = {key.removeprefix("demo/bundle/") for key in stored}
    assert {"index.json", "files/node_exporter.tar.gz", "files/uv.tar.gz", "files/pyxis.tar.gz"} <= names
    assert "files/prometheus.tar.gz" not in names  # there is no workspace to send to
    assert "wheels/annotated_doc-0.0.6-py3-none-any.whl" in names  # of Python 3.10, not of this one
    assert sum("wheels/idna-" in name for name in names) == 1  # which cluster.yaml adds
    assert not any("colorama" in name for name in names)
    assert sum("cp310" in name and "x86_64" in name for name in names) == 1
    index = json.loads(client.get_object(Bucket=BUCKET, Key="demo/bundle/index.json")["Body"].read())
    for name, entry in index.items():
        body = client.get_object(Bucket=BUCKET, Key=f"demo/bundle/{name}")["Body"].read()
        assert (hashlib.sha256(body).hexdigest(), len(body)) == (entry["sha256"], entry["bytes"])


def test_a_program_with_another_checksum_is_not_bundled(releases, settings_file, tmp_path, capsys):
    """The wrong file is removed, and the message has both checksums."""
    (releases / "node_exporter.tar.gz").write_bytes(b"evil")
    assert main(["bundle", str(settings_file), "-o", str(tmp_path / "bundle")]) == 1
    shown = capsys.readouterr().err
    assert f"has sha256 {hashlib.sha256(b'evil').hexdigest()}, the manifest says" in shown
    assert not list((tmp_path / "bundle/files").glob("*node_exporter*"))


def test_a_wheel_with_another_checksum_is_not_bundled(lock, tmp_path):
    """A wheel with another checksum is refused in pip's words."""
    lock.write_text("annotated-doc==0.0.6 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(offline_bundle.BundleError, match=r"annotated.doc(.|\n)*" + "0" * 64):
        offline_bundle.wheels(lock, tmp_path / "wheels", python="3.10", machine="x86_64")


def test_markers_are_judged_for_the_node(lock):
    """Whatever machine this is, a node is Linux with its own Python and processors."""
    lock.write_text(
        "a==1 ; platform_machine == 'aarch64' --hash=sha256:1\n"
        "b==1 ; python_full_version < '3.11' and sys_platform == 'linux' --hash=sha256:2 --hash=sha256:3\n"
        "c==1 ; sys_platform == 'darwin' --hash=sha256:4\n"
    )
    assert list(offline_bundle.applicable(lock.read_text(), python="3.10", machine="x86_64")) == [
        "b==1 --hash=sha256:2 --hash=sha256:3\n"
    ]
    assert len(list(offline_bundle.applicable(lock.read_text(), python="3.12", machine="aarch64"))) == 1


def test_a_cluster_without_features_needs_no_programs(settings_file, tmp_path, capsys):
    """Then the bundle is the wheels alone; without them it is empty, also as JSON."""
    content = yaml.safe_load(settings_file.read_text()) | {"nodes": {}, "training": {"source": "none"}}
    offline_bundle.build(Settings.model_validate(content), tmp_path / "bundle", python="3.10", upload=False)
    assert json.loads((tmp_path / "bundle" / "index.json").read_text()) == {}
    settings_file.write_text(yaml.safe_dump(content))
    capsys.readouterr()
    assert main(["bundle", str(settings_file), "-o", str(tmp_path / "bundle"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["files"], document["uploaded"], document["nodes_look_there"]) == ({}, None, False)
