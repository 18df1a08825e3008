"""A dataset becomes token shards, in one command or in several that continue each other."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from podwright_training.__main__ import main
from podwright_training.commands import tokenize
from podwright_training.data.bad_data import DataError
from podwright_training.data.token_shards import TokenShard, TokenShardWriter, write_token_shard

NUMBERS = {"a": range(1, 41), "b": range(500, 540)}  # words of each dataset


def write(folder, numbers, *, files=2, column="text"):
    """A document for each number, with files for both splits."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    texts = [json.dumps({column: f"w{number} w{number}"}) for number in numbers]
    for part in range(files):
        (folder / f"train-{part}.jsonl").write_text("\n".join(texts[part::files]))
    (folder / "validation.jsonl").write_text("\n".join(texts[:4]))


@pytest.fixture
def run(tmp_path, monkeypatch, word_tokenizer):
    """Runs the command with datasets ``a`` and ``b`` in the current folder."""
    monkeypatch.chdir(tmp_path)
    word_tokenizer.save_pretrained("tokenizer")
    for name, numbers in NUMBERS.items():
        write(tmp_path / name, numbers)

    def run(dataset="a", *more):
        fixed = ("--dataset-config-name=none", "--tokenizer=tokenizer", "--output=tokens", "--data-workers=1")
        return main(["tokenize", f"--dataset={dataset}", *fixed, *more])

    return run


@pytest.fixture
def interrupted(run, monkeypatch, tmp_path):
    """The work folder of dataset ``a``, without its second shard."""

    def fail(*_):
        raise DataError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(tokenize, "commit_folder", fail)
        assert run() == 2
    work = tmp_path / "tokens.partial"
    (work / "dataset" / "train.00001-of-00002.safetensors").unlink()
    return work


def words(folder):
    """The words of each shard."""
    return {
        path.name: sorted({int(token) for token in load_file(path)["tokens"]} - {0})
        for path in folder.glob("*.safetensors")
    }


def test_the_same_command_continues(run, interrupted, tmp_path):
    """Shards that are complete are not written again, and nothing but shards is left."""
    complete = interrupted / "dataset" / "train.00000-of-00002.safetensors"
    inode = complete.stat().st_ino
    assert run() == 0
    output = tmp_path / "tokens"
    assert (output / complete.name).stat().st_ino == inode
    assert words(output) == {
        "train.00000-of-00002.safetensors": list(NUMBERS["a"][::2]),
        "train.00001-of-00002.safetensors": list(NUMBERS["a"][1::2]),
        "validation.00000-of-00001.safetensors": list(NUMBERS["a"][:4]),
    }
    assert not interrupted.exists()


def test_leftovers_of_other_inputs_are_refused(run, interrupted, tmp_path, capsys):
    """Another dataset, other content or files of it, another column, or shards of unknown origin: one line says so."""
    shards = words(interrupted / "dataset")
    assert run("b") == 2
    assert "begun with other settings: dataset a there, b here" in capsys.readouterr().err
    cases = {
        "contents_digest": {"numbers": NUMBERS["b"]},
        "train_files 2 there, 3 here": {"numbers": NUMBERS["a"], "files": 3},
    }
    for message, other in cases.items():
        write(tmp_path / "a", **other)
        assert run() == 2
        error = capsys.readouterr().err
        assert "tokens.partial was begun with other settings: " in error
        assert message in error
    write(tmp_path / "a", NUMBERS["a"], column="body")
    assert run("a", "--text-column=body") == 2
    assert "text_column text there, body here" in capsys.readouterr().err
    assert words(interrupted / "dataset") == shards
    (interrupted / "begun.json").unlink()
    assert run("a", "--text-column=body") == 2
    assert "no begun.json that says which data and settings they are of: remove it" in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_json_array_is_named(run, tmp_path, capsys, mark):
    """Its lines are no records: nothing is written, also behind a mark of the byte order."""
    records = ",\n".join(json.dumps({"text": f"w{number}"}) for number in range(50))
    (tmp_path / "a" / "train-0.jsonl").write_text(f"{mark}[\n{records}\n]\n", encoding="utf-8")
    assert run() == 2
    assert "train-0.jsonl is a JSON array: write one object per line" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


def test_a_dataset_without_the_column_is_refused(run, tmp_path, capsys):
    """Broken records alone are no dataset without documents."""
    write(tmp_path / "a", NUMBERS["a"], column="content")
    assert run() == 2
    assert "no column 'text'" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


def test_what_a_killed_command_left_is_no_part_of_the_dataset(run, interrupted, tmp_path):
    """The tokens that it was writing go when the dataset is complete."""
    (interrupted / "dataset" / ".train.00001-of-00002.safetensors.1.tokens").write_bytes(bytes(100))
    assert run() == 0
    assert [path.name for path in (tmp_path / "tokens").iterdir() if path.name.startswith(".")] == []


def test_another_tokenizer_is_refused(run, interrupted, tmp_path, capsys):
    """Shards of one vocabulary do not continue with another."""
    assert interrupted.exists()
    path = tmp_path / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["more"] = 1000
    path.write_text(json.dumps(content))
    assert run() == 2
    assert "begun with other settings: tokenizer_digest" in capsys.readouterr().err


def test_numbers_out_of_range_are_one_line_each(run, capsys):
    """Both are named at once."""
    assert run("a", "--data-workers=0", "--max-bad-records=-1") == 2
    assert [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "data_workers: got 0, need at least 1", "max_bad_records: got -1, need at least 0",
    ]  # fmt: skip


def test_a_token_of_more_than_16_bits_widens_all(tmp_path):
    """Documents before it stay the same."""
    path = tmp_path / "train.safetensors"
    documents = [np.array(ids, dtype=np.uint32) for ids in ([1, 2], [], [70_000, 3], [65_535])]
    with TokenShardWriter(path, tokenizer="t") as shard:
        for document in documents:
            shard.add(document)
    written = TokenShard(str(path))
    assert [written[index].tolist() for index in range(len(written))] == [ids.tolist() for ids in documents]
    assert written[0].dtype == np.uint32


def test_a_shard_that_fails_leaves_no_file(tmp_path):
    """Neither the shard nor its tokens are left."""

    def documents():
        yield np.array([1, 2], dtype=np.uint32)
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write_token_shard(tmp_path / "train.safetensors", documents(), tokenizer="t")
    assert list(tmp_path.iterdir()) == []
