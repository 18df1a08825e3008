"""Checkpoints in S3, as moto's server plays it."""

import shutil

import boto3
import pytest
from moto.server import ThreadedMotoServer

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.checkpoint.mirror import Mirror
from podwright_training.run_folder import RunFolder

URL = "s3://bucket/runs/tiny"


@pytest.fixture(scope="module")
def endpoint():
    """Start an S3 server."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch):
    """An empty bucket, found as AWS's tools find it: by environment variables."""
    environment = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key", "REGION": "us-east-1", "ENDPOINT_URL": endpoint}
    for name, value in environment.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = boto3.Session().resource("s3").Bucket("bucket")
    bucket.create()
    yield bucket
    bucket.objects.delete()
    bucket.delete()


@pytest.fixture
def run(tiny_flags):
    """Trains with checkpoints in the bucket; the exit status."""

    def run(folder, **options):
        options = {"checkpoint_dir": URL, "keep_checkpoints": 2} | options
        return main(["train", *tiny_flags(folder, ranks=1, **options)])

    return run


@pytest.mark.slow
def test_a_run_goes_on_where_its_folder_is_gone(bucket, run, undisturbed, tmp_path):
    """On another cluster the newest checkpoint of the store is fetched, and the run is the undisturbed one.

    Nothing of it is in the memory of that cluster.
    """
    assert run(tmp_path / "here", max_steps=12) == 0
    there = {item.key.split("/")[2] for item in bucket.objects.all() if item.key.endswith("manifest.json")}
    assert there == {"step-00000008", "step-00000012"}
    bucket.Object("runs/tiny/step-00000012/manifest.json").delete()  # as a kill during the copy leaves it
    assert run(tmp_path / "elsewhere", max_steps=12, memory_checkpoint_freq=1) == 0
    elsewhere = RunFolder(tmp_path / "elsewhere")
    assert next(logged(elsewhere, "start"))["step"] == 8
    digests = {event["step"]: event["batch_digest"] for event in logged(RunFolder(undisturbed), "train")}
    assert all(event["batch_digest"] == digests[event["step"]] for event in logged(elsewhere, "train"))


@pytest.mark.usefixtures("bucket")
@pytest.mark.slow
def test_the_newest_of_both_places_wins(run, tmp_path):
    """A checkpoint is fetched only if it is not in the local folder."""
    assert run(tmp_path / "run", max_steps=4) == 0
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "old")
    assert run(tmp_path / "run", max_steps=8) == 0
    assert Mirror(URL, tmp_path / "old").newest() == "step-00000008"
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "old").rename(tmp_path / "run" / "checkpoints")
    assert run(tmp_path / "run", max_steps=12, resume_from_checkpoint=URL) == 0
    assert [event["step"] for event in logged(RunFolder(tmp_path / "run"), "start")] == [0, 4, 8]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("url", "message"),
    [("s3://no-such-bucket/a", "NO_SUCH_BUCKET"), ("carrier-pigeon://a/b", "Unrecognized filesystem type")],
)
def test_an_unreachable_store_is_reported_before_the_run(run, tmp_path, capsys, url, message):
    """No such bucket, no such kind of store: one line each, exit status 2."""
    assert run(tmp_path, checkpoint_dir=url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot use checkpoint_dir {url}: ")
    assert message in line


@pytest.mark.slow
def test_a_store_that_goes_away_costs_no_checkpoint(bucket, run, tmp_path, caplog, capsys, monkeypatch):
    """A checkpoint whose copy fails stays local; a last one that is not copied is an error at the end."""

    def check_and_go_away(mirror):
        check(mirror)
        bucket.objects.delete()
        bucket.delete()

    check = Mirror.check
    monkeypatch.setattr(Mirror, "check", check_and_go_away)
    assert run(tmp_path, max_steps=6, checkpoint_freq=3) == 2
    bucket.create()
    assert "training continues" in caplog.text
    assert "NO_SUCH_BUCKET" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000003", "step-00000006"}
