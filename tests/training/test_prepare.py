"""Prose becomes a dataset in C4's layout and a tokenizer."""

import gzip
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from argparse import ArgumentParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_testing.training_documents import as_described
from podwright_training.__main__ import main
from podwright_training.commands import prepare as command
from podwright_training.commands.prepare import Dropped, PrepareError, _readable, prepare, split_documents
from podwright_training.data.mixture import Source
from podwright_training.data.prose import (
    UnreadableError,
    html_to_prose,
    paragraphs_of,
    pdf_to_prose,
    rst_to_prose,
    text_to_prose,
)
from podwright_training.data.stream import PackedStream
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.errors import UserError

WORDS = ("sea", "was", "calm", "a", "small", "boat", "went", "slowly", "past", "our", "old", "stone", "house", "light")


WRAPPED = """\
This paragraph was cut into lines by an editor, which put each
word that did not fit anymore on the next line, and so do we not."""


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    """A folder with 30 text files of made-up paragraphs."""
    folder = tmp_path_factory.mktemp("prose")
    dice = random.Random(7)  # noqa: S311 - not for cryptography
    for number in range(30):
        paragraphs = [" ".join(dice.choices(WORDS, k=60)) + "." for _ in range(40)]
        (folder / f"{number}.txt").write_text(f"Chapter {number}\n\n" + "\n\n".join(paragraphs))
    return folder


def read(folder, split):
    """Texts of a split's records."""
    for shard in sorted((folder / "en").glob(f"c4-{split}.*.json.gz")):
        with gzip.open(shard, "rt") as file:
            yield from (json.loads(line)["text"] for line in file)


def test_splits_are_disjoint_and_complete(prose, tmp_path):
    """Every document is in the training or the validation split, none in both, with all of its paragraphs."""
    prepared = prepare(prose, tmp_path / "c4", shards=4, vocab_size=300, validation_fraction=0.2)
    train, validation = list(read(prepared.folder, "train")), list(read(prepared.folder, "validation"))
    assert len(list((prepared.folder / "en").glob("c4-train.*-of-00004.json.gz"))) == 4
    assert (len(train), len(validation)) == (prepared.train_documents, prepared.validation_documents)
    assert not set(train) & set(validation)
    source = {p for file in prose.iterdir() for p in file.read_text().split("\n\n")}
    assert {paragraph for text in train + validation for paragraph in text.split("\n\n")} == source


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_one_line(prose, tmp_path, capsys):
    """The line says why, and nothing is left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", tmp_path], check=True)
    try:
        output = str(tmp_path / "c4")
        assert main(["prepare", str(prose), "--output", output, "--shards", "4", "--validation-fraction", "0.2"]) == 2
        assert f"cannot prepare {prose}: {output}: No space left on device" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_damage_in_an_archive_is_named(prose, tmp_path, capsys):
    """A damaged or encrypted file of an archive is skipped, an archive that is cut is one line, links are followed."""
    text, archive = (prose / "0.txt").read_bytes(), tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(prose.iterdir()):
            file.write(path, path.name)
    content = bytearray(archive.read_bytes())
    content[content.index(text[:40]) + 30] ^= 1
    archive.write_bytes(content)
    flags = ("--shards", "2", "--validation-fraction", "0.2", "--vocab-size", "300")
    assert main(["prepare", str(archive), "--output", str(tmp_path / "a"), *flags]) == 0
    assert "skipped 0.txt: truncated or damaged" in capsys.readouterr().err
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        tar.add(prose, "prose")
    whole = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) * 2 // 3])
    assert main(["prepare", str(tmp_path / "b.tar.gz"), "--output", str(tmp_path / "b"), *flags]) == 2
    assert "b.tar.gz is truncated or damaged: Compressed file ended" in capsys.readouterr().err
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "linked").symlink_to(prose)
    (prose / "back").symlink_to(prose)
    (tmp_path / "texts" / "lost.txt").symlink_to("nowhere")
    try:
        assert main(["prepare", str(tmp_path / "texts"), "--output", str(tmp_path / "c"), *flags]) == 0
    finally:
        (prose / "back").unlink()
    assert "skipped lost.txt: No such file or directory" in capsys.readouterr().err
    assert "file:linked/7.txt#0" in "".join(
        gzip.decompress(path.read_bytes()).decode() for path in (tmp_path / "c" / "en").iterdir()
    )


def test_answers_for_programs(prose, tmp_path, capsys):
    """With --json, prepare, tokenizer and tokenize print one document each, with what their text has."""

    def ask(*words):
        assert main([*map(str, words), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        as_described(words[0], document)
        return document

    data = tmp_path / "data"
    tokenizer = data / "tokenizer"
    source = shutil.copytree(prose, tmp_path / "prose")
    (source / "photo.png").touch()
    prepared = ask("prepare", source, "--output", data, "--vocab-size", 300, "--shards", 2)
    assert (prepared["folder"], prepared["vocab_size"], prepared["shards"]) == (str(data), 300, 2)
    nothing: dict[str, object] = {"unreadable": [], "without_prose": [], "without_text": []}
    counts = {"paragraphs_without_letters": 0, "hidden": 0, "other_types": {".png": 1}, "duplicates": 0}
    assert prepared["dropped"] == {**nothing, **counts}
    (found,) = ask("tokenizer", "inspect", tokenizer, "--dataset", data, "--documents", 5)["tokenizers"].values()
    assert found["restored"]
    tokens = tmp_path / "tokens"
    written = ask("tokenize", "--dataset", data, "--tokenizer", tokenizer, "--output", tokens, "--data-workers", 1)
    splits = [prepared["train_documents"], prepared["validation_documents"]]
    assert [sum(shards) for shards in written["documents"]] == splits


def test_same_prose_same_bytes(prose, tmp_path):
    """The same prose gives the same files, byte by byte, from a folder, a zip and a tar archive."""
    shutil.make_archive(tmp_path / "prose", "zip", prose)
    shutil.make_archive(tmp_path / "prose", "gztar", prose)
    with zipfile.ZipFile(tmp_path / "prose.zip") as archive:
        assert "3.txt" in archive.namelist()
    with tarfile.open(tmp_path / "renamed.tar", "w") as archive:
        archive.add(prose, arcname="")
    folders = []
    for number, source in enumerate((prose, prose, tmp_path / "prose.zip", tmp_path / "renamed.tar")):
        folders.append(tmp_path / f"c4-{number}")
        prepare(source, folders[-1], shards=2, vocab_size=300, validation_fraction=0.2)
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    ]
    assert len(contents[0]) == 5
    assert all(content == contents[0] for content in contents)


@pytest.mark.slow
def test_trainer_reads_it(prose, tmp_path, capsys):
    """The command's output is what the packed stream and transformers take; tokens decode to the text again."""
    output = tmp_path / "c4"
    parser = ArgumentParser()
    command.add_arguments(parser)
    numbers = ("--shards", "4", "--vocab-size", "300", "--validation-fraction", "0.2")
    arguments = [str(prose), "--output", str(output), *numbers]
    assert command.run(parser.parse_args(arguments)) == 0
    program, *flags = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert program == "podwright-train"
    brief = ("--max-steps", "1", "--num-layers", "1", "--max-context-width", "16", "--validation-batches", "1")
    subprocess.run([sys.executable, "-m", "podwright_training", *flags, *brief], check=True, cwd=tmp_path, timeout=500)
    assert (tmp_path / "runs/c4/metrics.jsonl").read_text().count('"event": "validation"') == 1
    stream = packed_stream(output, split="train", rank=0, world_size=1, streams=4)
    tokenizer = load_tokenizer(str(output / "tokenizer"))
    assert len(tokenizer) == 300
    assert tokenizer.eos_token_id != tokenizer.bos_token_id
    row = tokenizer.decode(stream.next_batch().tokens_BT[0])
    assert any(row[:100] in text for text in read(output, "train"))


def packed_stream(folder, *, split, rank, world_size, streams):
    """The data share of a rank."""
    return PackedStream(
        [Source(name="prose", dataset=str(folder), dataset_config_name="en")], split=split,
        tokenizer=str(folder / "tokenizer"), context_width=64, rank=rank, world_size=world_size, local_batch_size=8,
        streams=streams,
    )  # fmt: skip


def documents_of(file):
    """Number of documents in a text file."""
    return len(list(split_documents(paragraphs_of(file.read_text(), is_extracted=False))))


@pytest.fixture(scope="module")
def tokenizer(prose, tmp_path_factory):
    """A tokenizer trained on the prose."""
    folder = tmp_path_factory.mktemp("c4") / "c4"
    prepare(prose, folder, shards=2, vocab_size=300, validation_fraction=0.2)
    return load_tokenizer(str(folder / "tokenizer"))


@given(text=st.text())
def test_every_text_survives_the_tokenizer(tokenizer, text):
    """A byte-level tokenizer knows no unknown character."""
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_a_page_becomes_its_main_text():
    """Of an HTML page, headings, paragraphs and lists remain; navigation, scripts and tables go."""
    filler = "".join(f"<p>Paragraph {number} has a few words of its own, so that it counts.</p>" for number in range(6))
    page = (
        "<html><head><title>T</title></head><body><nav><a href='/'>Home</a> <a href='/next'>Next page</a></nav>"
        f"<article><h1>A title</h1><p>One &amp; <em>two</em>\nthree.</p>{filler}<table><tr><td>cell</td></tr></table>"
        "<ul><li>item</li></ul></article><script>x()</script><footer>Imprint</footer></body></html>"
    )
    paragraphs = html_to_prose(page.encode()).split("\n\n")
    assert paragraphs[0] == "A title"
    assert "One & two three." in paragraphs
    assert sum(paragraph.startswith("Paragraph") for paragraph in paragraphs) == 6
    assert not {"cell", "Imprint", "Next page", "x()"}.intersection(" ".join(paragraphs).split())


def test_restructured_text():
    """Headings and paragraphs remain with the text of their roles; code, tables and unknown directives go."""
    text = (
        "Title\n=====\n\n.. note:: a note\n\n.. toctree::\n\n   gone\n\nSee :ref:`the page <page>` and ``code``.\n\n"
        "Example::\n\n  x = 1\n\n.. gone too\n\n=== ===\na   b\n=== ===\n\n.. include:: /etc/passwd\n\nEnd.\n"
    )
    expected = ["Title", "a note", "See the page and code.", "Example:", "End."]
    assert rst_to_prose(text.encode()).split("\n\n") == expected


def test_a_pdf_becomes_its_paragraphs():
    """Lines that stand together are one paragraph; a damaged file is named."""
    paragraphs = [["The first paragraph has", "two lines of text."], ["The second one is further down."]]
    from matplotlib.figure import Figure

    page, file = Figure(figsize=(6, 8)), io.BytesIO()
    for lines, height in zip(paragraphs, (0.9, 0.5), strict=True):
        page.text(0.1, height, "\n".join(lines))
    page.savefig(file, format="pdf")
    assert [text.split("\n") for text in pdf_to_prose(file.getvalue()).strip().split("\n\n")] == paragraphs
    with pytest.raises(UnreadableError, match="no readable PDF"):
        pdf_to_prose(file.getvalue()[:100])


def test_a_missing_package_is_one_line(prose, tmp_path, monkeypatch):
    """Nothing is prepared without the library that a file needs: the line says what to install."""
    shutil.copytree(prose, tmp_path / "in")
    (tmp_path / "in" / "paper.pdf").touch()
    monkeypatch.setattr("podwright_training.data.prose.find_spec", lambda _: None)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path / "in", tmp_path / "c4", shards=1, vocab_size=300, validation_fraction=0.2)
    assert str(caught.value) == (
        ".pdf files need pdfminer.six, which is not installed: pip install 'podwright-training[documents]', "
        "or leave them out"
    )
    assert not (tmp_path / "c4").exists()


def test_documents_are_cut_between_paragraphs():
    """Documents are long enough, except the last, and short lines stay with the paragraph they head."""
    paragraphs = ["word " * 100] * 15
    documents = list(split_documents(["Heading", *paragraphs]))
    assert documents[0].startswith("Heading\n\nword")
    assert [len(document) >= command.DOCUMENT_CHARACTERS for document in documents] == [True, True, False]


def test_a_heading_begins_a_document():
    """It stays with the paragraph that follows it, also where a document is long enough before it or with it."""
    documents = list(split_documents(["a" * 2990 + ".", "A heading", "b" * 3000 + ".", "Another", "c."]))
    assert documents == ["a" * 2990 + ".\n\nA heading\n\n" + "b" * 3000 + ".", "Another\n\nc."]


def test_a_long_paragraph_is_cut_between_lines():
    """A text without blank lines becomes several documents, with every line."""
    lines = ["老人晚上在安静的城市里走路想着孩子们。" * 3] * 300
    documents = list(split_documents(["\n".join(lines)]))
    assert len(documents) == 6
    assert "\n".join(documents).split("\n") == lines


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("“Yes,” he said.\n\n“No.”\r\n\r\n“Oh?”", ["“Yes,” he said.", "“No.”", "“Oh?”"]),
        ("短文。\n第二行。\n \n第三行。", ["短文。\n第二行。", "第三行。"]),
        ("The woods are lovely, dark and deep,\n  But I have promises to keep,\n", None),
        ("def f(x):\n    if x:\n        return 1\n    return 2", None),
        ("- one item of a list that has a long line, which nearly fills it\n- two", None),
        (WRAPPED, [WRAPPED.replace("\n", " ")]),
        ("One paragraph in each line, which is longer than what an editor has.\nA short one.\n" + "Long. " * 30, None),
        ("one\n\n\n\x0ctwo\n", ["one", "two"]),
        ("x = 1\n\n}\n\n* * *", ["x = 1", "}", "* * *"]),
    ],
)
def test_lines_that_mean_something_stay(text, paragraphs):
    """Dialogue, Chinese, stanzas, code and lists stay as they are; lines that an editor cut are joined."""
    expected = [text.rstrip()] if paragraphs is None else paragraphs
    assert list(paragraphs_of(text, is_extracted=False)) == expected


def test_all_text_of_a_file_is_in_the_dataset(tmp_path, capsys):
    """Short paragraphs stay; empty files are named, and page numbers counted."""
    dialogue = [f"“Yes, {number},” said the {word}." for number in range(600) for word in WORDS[:2]]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "novel.txt").write_text("\n\n".join(dialogue))
    (tmp_path / "in" / "empty.md").write_text(" \n* * *\n")
    (tmp_path / "in" / "page.html").write_text(
        "<html><body><article>"
        + "".join(f"<p>{part}</p><p>{part.split()[1]}</p>" for part in dialogue[:3])
        + "</article>"
    )
    command = ["prepare", str(tmp_path / "in"), "--output", str(tmp_path / "c4"), "--shards=1", "--vocab-size=300"]
    assert main([*command, "--validation-fraction=0.4"]) == 0
    texts = "\n\n".join([*read(tmp_path / "c4", "train"), *read(tmp_path / "c4", "validation")]).split("\n\n")
    assert set(dialogue) <= set(texts)
    assert "skipped 1 files without text: empty.md, …" in capsys.readouterr().err


def test_hidden_files_are_counted():
    """Those of editors, of macOS and of version control are no documents."""
    dropped = Dropped()
    names = ["a.md", "b/c.txt", "__MACOSX/._a.md", ".git/d.md", "e/.ipynb_checkpoints/f-checkpoint.md", "._g.txt"]
    assert _readable(names, dropped) == ["a.md", "b/c.txt"]
    assert dropped == Dropped(hidden=4)
    assert list(dropped.lines()) == ["skipped 4 hidden files"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_mark_of_the_byte_order_is_no_text(encoding):
    """The text begins behind it."""
    assert text_to_prose("Größe".encode(encoding)) == "Größe"
    with pytest.raises(UnreadableError, match="NUL bytes"):
        text_to_prose("Hello".encode("utf-16-le"))
    with pytest.raises(UnreadableError, match="not UTF-16"):
        text_to_prose("Größe".encode("utf-16")[:-1])


def test_all_problems_are_reported_at_once(tmp_path):
    """All numbers out of range and an existing output are one error."""
    with pytest.raises(PrepareError) as caught:
        prepare(tmp_path, tmp_path, shards=0, vocab_size=10, validation_fraction=1)
    assert [line.split()[0] for line in str(caught.value).splitlines()] == [
        "shards:", "vocab_size:", "validation_fraction:", "output",
    ]  # fmt: skip


def test_too_little_prose(tmp_path):
    """Too little prose leaves nothing behind."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("A paragraph that is long enough to be one, but alone.")
    with pytest.raises(PrepareError, match="16 shards need at least 16 of each: add prose"):
        prepare(tmp_path / "in", tmp_path / "c4", shards=16, vocab_size=300, validation_fraction=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_too_few_documents_for_validation(prose, tmp_path):
    """Every stream of the trainer needs a document of either split; the fraction that the error names gives them."""
    with pytest.raises(PrepareError, match="16 shards need at least 16 of each") as caught:
        prepare(prose, tmp_path / "c4", shards=16, vocab_size=300, validation_fraction=0.01)
    fraction = float(re.search(r"--validation-fraction ([\d.]+)", str(caught.value))[1])
    prepared = prepare(prose, tmp_path / "c4", shards=16, vocab_size=300, validation_fraction=fraction)
    for split in ("train", "validation"):
        for stream in range(16):
            packed_stream(prepared.folder, split=split, rank=stream, world_size=16, streams=16).next_batch()


def test_unreadable_files_are_named(prose, tmp_path, capsys):
    """A file that is not UTF-8 is left out and named; files of other types and duplicates are counted."""
    shutil.copytree(prose, tmp_path / "in")
    shutil.copy(tmp_path / "in" / "3.txt", tmp_path / "in" / "copy.md")
    (tmp_path / "in" / "menu.html").write_text("<p>home</p>")
    for name in ("paper.PDF", "paper.docx", "book.DOCX", "Makefile"):
        (tmp_path / "in" / name).touch()
    (tmp_path / "in" / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "in" / "cut.txt.gz").write_bytes(gzip.compress(b"text")[:-6])
    parser = ArgumentParser()
    command.add_arguments(parser)
    numbers = ("--shards", "4", "--vocab-size", "300", "--validation-fraction", "0.2")
    command.run(parser.parse_args([str(tmp_path / "in"), "--output", str(tmp_path / "c4"), *numbers]))
    assert capsys.readouterr().err.splitlines() == [
        "skipped cut.txt.gz: truncated or damaged",
        "skipped latin.txt: not UTF-8",
        "skipped paper.PDF: no readable PDF (PDFSyntaxError)",
        "skipped 1 files without a paragraph of 40 characters: menu.html, …",
        "skipped 3 files of other types: 2 .docx, 1 without suffix (read are .txt .md .html .htm .pdf .rst)",
        f"dropped {documents_of(prose / '3.txt')} documents: their text occurred before",
    ]


def test_no_such_source(tmp_path):
    """A source that is not there is named, and so is one that is neither a folder nor an archive."""
    with pytest.raises(PrepareError, match="nowhere: no such file or folder"):
        prepare(tmp_path / "nowhere", tmp_path / "c4", shards=1, vocab_size=300, validation_fraction=0.1)
    (tmp_path / "text").write_text("words")
    with pytest.raises(PrepareError, match="text is neither a folder nor"):
        prepare(tmp_path / "text", tmp_path / "c4", shards=1, vocab_size=300, validation_fraction=0.1)


def test_output_that_nobody_reads_is_no_traceback(prose, tmp_path):
    """The dataset is written, and the command ends with 1."""
    command = [sys.executable, "-m", "podwright_training", "prepare", str(prose), "--output", str(tmp_path / "c4")]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*command, "--shards", "2"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "c4" / "en").is_dir()
