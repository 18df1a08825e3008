"""A dataset is filtered and de-duplicated, and becomes token shards."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from podwright_testing.planted import Planted, documents_of
from podwright_training.__main__ import main
from podwright_training.data.mixture import Source
from podwright_training.data.stream import PackedStream

PAIRS, OTHERS, COPIES = 300, 450, 50  # documents planted
DICE = random.Random(3)  # noqa: S311 - not for secrets


def document(words=229):
    """A text of random words, two of them English."""
    return " ".join(
        ["".join(DICE.choices("abcdefghij", k=DICE.randint(3, 9))) for _ in range(words - 2)] + ["the", "of"]
    )


def write(folder, texts, files=3):
    """JSON lines in several files."""
    folder.mkdir()
    for number in range(files):
        lines = (json.dumps({"text": text}) + "\n" for text in texts[number::files])
        (folder / f"part-{number}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return folder


def flags(dataset, output, text_dataset, *more):
    """Arguments of the command."""
    named = {"dataset": dataset, "output": output, "tokenizer": text_dataset / "tokenizer"}
    fixed = ("--dataset-config-name", "none", "--workers", "1", "--filters")
    return [*(f"--{name}={value}" for name, value in named.items()), *fixed, *more]


def contents(folder):
    """Every file's bytes, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def planted(text_dataset, tmp_path_factory):
    """Documents with planted duplicates, and the manifest of what was made of them."""
    folder = tmp_path_factory.mktemp("curated")
    documents = Planted.make(PAIRS)
    texts = [*documents.texts, *documents.texts[:COPIES], "the", "of"]
    DICE.shuffle(texts)
    dataset = write(folder / "raw", texts)
    arguments = flags(dataset, folder / "tokens", text_dataset, "gopher_quality")
    assert main(["curate", *arguments]) == 0
    return dataset, folder / "tokens", json.loads((folder / "tokens" / "manifest.json").read_text())


@pytest.mark.slow
def test_near_duplicates_are_found_and_others_are_kept(planted, text_dataset):
    """Of pairs with similarity 0.8, 95 % lose one; of the other documents, less than 1 % go."""
    _, output, manifest = planted
    removed = {step["step"]: step for step in manifest["steps"]}
    assert removed["read"]["documents"] == 2 * PAIRS + OTHERS + COPIES + 2
    assert removed["gopher_quality"]["reasons"] == {"gopher_short_doc": 2}
    assert removed["exact duplicates"]["removed"] == COPIES
    left = list(documents_of(output, text_dataset / "tokenizer"))
    recall, lost = Planted([], PAIRS, OTHERS).found(left)
    assert recall >= 0.95
    assert lost < 0.01
    assert len(left) == 2 * PAIRS + OTHERS - removed["near duplicates"]["removed"]


@pytest.mark.slow
def test_the_manifest_lists_every_shard_and_training_reads_them(planted, text_dataset):
    """Sizes, hashes and counts are those of the files; both splits can be read."""
    _, output, manifest = planted
    assert {shard["name"] for shard in manifest["shards"]} == {path.name for path in output.glob("*.safetensors")}
    for shard in manifest["shards"]:
        assert hashlib.sha256((output / shard["name"]).read_bytes()).hexdigest() == shard["sha256"]
    assert manifest["splits"]["train"]["tokens"] == sum(
        shard["tokens"] for shard in manifest["shards"] if shard["split"] == "train"
    )
    for split in ("train", "validation"):
        stream = PackedStream(
            [Source(name="curated", dataset=str(output))], split=split, tokenizer=str(text_dataset / "tokenizer"),
            context_width=32, rank=0, world_size=1, local_batch_size=4, streams=2,
        )  # fmt: skip
        stream.next_batch()
    assert not output.with_name("tokens.partial").exists()


@pytest.mark.slow
def test_a_killed_curation_goes_on_and_writes_the_same(planted, start, text_dataset, tmp_path):
    """After SIGKILL in the middle, the same command writes byte for byte what an undisturbed one wrote."""
    dataset, undisturbed, _ = planted
    arguments = flags(dataset, tmp_path / "tokens", text_dataset, "gopher_quality")
    process = start("curate", *arguments)
    complete = tmp_path / "tokens.partial" / "logs" / "near-signatures" / "completions" / "00000"
    while not complete.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "tokens").exists()
    assert main(["curate", *arguments]) == 0
    assert contents(tmp_path / "tokens") == contents(undisturbed)


def test_other_settings_do_not_go_on(planted, text_dataset, tmp_path, capsys):
    """A work folder of other settings or data is refused by name, and an output that is there is not touched."""
    dataset, output, _ = planted
    (tmp_path / "tokens.partial").mkdir()
    (tmp_path / "tokens.partial" / "begun.json").write_text("{}")
    assert main(["curate", *flags(dataset, tmp_path / "tokens", text_dataset)]) == 2
    assert "was begun with other settings: dataset None there" in capsys.readouterr().err
    before = contents(output)
    assert main(["curate", *flags(dataset, output, text_dataset)]) == 2
    assert f"output {output} exists" in capsys.readouterr().err
    assert contents(output) == before


def test_a_folder_that_nobody_may_write_is_named(text_dataset, capsys):
    """The line names the folder; /sys refuses new ones to everybody."""
    where = ["--dataset", str(text_dataset), "--tokenizer", str(text_dataset / "tokenizer")]
    assert main(["curate", *where, "--output=/sys/curated"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read or write /sys/curated.partial: ")


@pytest.mark.slow
def test_formats_languages_and_personal_data(text_dataset, tmp_path, capsys):
    """Parquet and zstd are read, German goes, and an email address and a public IP address are masked."""
    folder = tmp_path / "raw"
    folder.mkdir()
    english = "Write to jane.doe@corp.com from 8.8.4.4 when the ship has left the harbour and all of them are on it."
    german = "Das Schiff verließ gestern den Hafen, und niemand an Bord wusste, wohin die lange Reise gehen sollte."
    pq.write_table(pa.table({"text": [english]}), folder / "a.parquet")
    (folder / "b.jsonl.zst").write_bytes(pa.compress(json.dumps({"text": german}).encode(), "zstd", asbytes=True))
    output = tmp_path / "tokens"
    arguments = flags(folder, output, text_dataset)
    assert (
        main(
            [
                "curate",
                *arguments,
                "--languages",
                "en",
                "--mask-personal",
                "--keep-exact",
                "--keep-near",
                "--workers",
                "2",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("training needs validation documents")  # one document is left
    steps = {step["step"]: step for step in json.loads((output / "manifest.json").read_text())["steps"]}
    assert (steps["read"]["documents"], steps["languages"]["removed"]) == (2, 1)
    (text,) = documents_of(output, text_dataset / "tokenizer")
    assert "email@example.com" in text
    assert "192.0.2.1" in text
    assert "jane" not in text
    assert "8.8.4.4" not in text


def damaged(folder):
    """A dataset with one file of each kind of damage."""
    folder.mkdir()
    good = "".join(json.dumps({"text": f"document {number} of a good file"}) + "\n" for number in range(2000)).encode()
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(good)[:-2000])
    (folder / "empty.jsonl").touch()
    (folder / "good.jsonl").write_bytes(good.replace(b"a good", b"another"))
    (folder / "latin.jsonl").write_bytes('{"text": "Größe"}\n'.encode("latin-1") + b'{"body": "wrong column"}\n')
    with gzip.open(folder / "long.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(200):
            file.write(bytes(2**20).replace(b"\0", b"x"))
        file.write(b'"}\n{"text": "after the long line"}\n')
    return folder


@pytest.mark.slow
def test_damage_is_named_and_the_rest_is_kept(text_dataset, tmp_path, capsys):
    """A damaged file stops the command, unless it is allowed: then all before the damage is kept, and all is listed."""
    dataset = damaged(tmp_path / "raw")
    arguments = flags(dataset, tmp_path / "tokens", text_dataset, "--keep-exact", "--keep-near")
    assert main(["curate", *arguments]) == 2
    assert f"the last one {dataset}/cut.jsonl.gz: truncated or damaged" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()
    arguments[1] = f"--output={tmp_path / 'other'}"
    assert main(["curate", *arguments, "--max-bad-shards", "1"]) == 0
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    reasons = {fault["place"].removeprefix(f"{dataset}/"): fault["reason"] for fault in manifest["faults"]}
    assert "Compressed file ended" in reasons.pop("cut.jsonl.gz")
    assert "utf-8" in reasons.pop("latin.jsonl:1")
    assert reasons == {
        "latin.jsonl:2": "no column 'text' (text_column); columns: body",
        "long.jsonl.gz:1": "a line of more than 64 MiB",
    }
    texts = list(documents_of(tmp_path / "other", text_dataset / "tokenizer"))
    assert "after the long line" in texts
    assert sum("another file" in text for text in texts) == 2000
    assert sum("a good file" in text for text in texts) > 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "empty.jsonl" in line]  # a file without a document, and no damage


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_no_space_left(text_dataset, tmp_path, capsys):
    """A full disk is named and leaves nothing under the final name; with more space the same command goes on."""
    dataset = write(tmp_path / "raw", [document() for _ in range(200)])
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        arguments = flags(dataset, disk / "tokens", text_dataset, "--keep-exact", "--keep-near")
        assert main(["curate", *arguments]) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert not (disk / "tokens").exists()
        subprocess.run(["mount", "-o", "remount,size=64M", disk], check=True)
        assert main(["curate", *arguments]) == 0
        assert sum(1 for _ in documents_of(disk / "tokens", text_dataset / "tokenizer")) == 200
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_without_validation_documents_there_is_nothing_to_train_on_yet(text_dataset, tmp_path, capsys):
    """The last line says which fraction holds some out; with it, it is a command with streams that own a document."""
    dataset = write(tmp_path / "raw", [document() for _ in range(8)])
    arguments = flags(dataset, tmp_path / "tokens", text_dataset, "--keep-exact", "--keep-near", "--filters")
    assert main(["curate", *arguments, "--validation-fraction", "1e-9"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "training needs validation documents: curate again with --validation-fraction 0.25 or more"
    arguments = flags(dataset, tmp_path / "again", text_dataset, "--keep-exact", "--keep-near", "--filters")
    assert main(["curate", *arguments, "--validation-fraction", "0.5"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    held_out = json.loads((tmp_path / "again/manifest.json").read_text())["splits"]["validation"]["documents"]
    assert 1 <= int(last.split("--data-streams ")[1].split()[0]) <= held_out < 8


@pytest.mark.parametrize("name", ["v[2]", "a*", "b?/tokens"])
def test_a_path_that_is_a_pattern_is_refused(planted, text_dataset, tmp_path, capsys, name):
    """In such a folder no duplicate would be found; the message says which characters are meant."""
    assert main(["curate", *flags(planted[0], tmp_path / name, text_dataset)]) == 2
    assert "in the path, which datatrove takes for a pattern: choose another" in capsys.readouterr().err


def test_nothing_is_left(text_dataset, tmp_path, capsys):
    """Filters that remove everything are an error, not an empty dataset."""
    dataset = write(tmp_path / "raw", ["too short"] * 3)
    assert main(["curate", *flags(dataset, tmp_path / "tokens", text_dataset, "gopher_quality")]) == 2
    assert "no document is left: 3 read; gopher_quality removed 3" in capsys.readouterr().err
    arguments = flags(dataset, tmp_path / "wrong", text_dataset, "--text-column", "body")
    assert main(["curate", *arguments]) == 2
    assert "no column 'body' (text_column); columns: text" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()
    assert main(["curate", *flags(dataset, tmp_path / "x", text_dataset, "gopher"), "--tasks=0", "--buckets=0"]) == 2
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["filters:", "buckets:"]
