"""YAML that people write: every mistake of its text is one line with its place, whichever of our files has it."""

from pathlib import Path

import pytest

from podwright_common.yaml_document import MAX_DEPTH, YamlDocument
from podwright_training.config.sources import load_file
from podwright_training.errors import ConfigError
from podwright_training.jobs import spec

ALIASES = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
BROKEN = {  # by the text: line, column and words of the only problem
    "{key}: 1\n{key}: 2\n": (2, 1, "{key} is set twice; the first is in line 1; keep one of them"),
    '{key}: 1\nname: "\\0"\n': (2, 7, "not a text: it has a NUL or half of a character"),
    '{key}: 1\nname: "\\ud800"\n': (2, 7, "not a text: it has a NUL or half of a character"),
    "{key}: 1\n\tname: a\n": (2, 1, "a tab is not allowed here; indent with spaces, not with tabs"),
    "{key}: 1\nname: a: b\n": (2, 8, "a second `: ` in one value; quote the value, or begin a new line"),
    "{key}: 1\n---\nname: a\n": (2, 1, "a second document starts here; a file describes one thing: "),
    "{key}: 1\nname: \x07\n": (2, 7, "the character U+0007 is not allowed in YAML; delete it"),
    "{key}: !!int x\n": (1, None, "not YAML: "),
    "{key}: " + "[" * 5000: (1, None, f"nested more than {MAX_DEPTH} levels deep; write less deep"),
    "{key}: &x [*x]\n": (1, None, f"nested more than {MAX_DEPTH} levels deep; write less deep"),
    "a: &a 1\n" + ALIASES + "\n": (None, None, "more than 100,000 values, with those of aliases"),
    "? [a]\n: b\n": (1, 3, "this key is not a word; write `key: value`"),
}


def problems_of(load, file: Path) -> list[str]:
    """Return what is wrong with a file."""
    with pytest.raises(ConfigError) as error:
        load(file)
    return error.value.problems


@pytest.mark.parametrize(("load", "key"), [(load_file, "max_steps"), (spec.load, "nodes")], ids=["run", "job"])
@pytest.mark.parametrize("text", BROKEN, ids=[repr(text[:30]) for text in BROKEN])
def test_a_mistake_of_the_text_is_one_line(tmp_path, load, key, text):
    """File, line and column, what is wrong and what to do."""
    file, (line, column, words) = tmp_path / "a.yaml", BROKEN[text]
    file.write_text(text.replace("{key}", key).replace("name", "seed" if key == "max_steps" else "name"))
    problem = problems_of(load, file)[0]
    place, _, message = problem.removeprefix(f"{file}:").partition(": ")
    assert message.startswith(words.replace("{key}", key))
    assert line is None or place.split(":")[0] == str(line)
    assert column is None or place == f"{line}:{column}"
    assert "\n" not in problem


@pytest.mark.parametrize("load", [load_file, spec.load], ids=["run", "job"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nodes: \xff", "is not UTF-8: byte 0xff at 7"),
        ("nodes: 1".encode("utf-16"), "is not UTF-8: it is UTF-16"),
        (b"# x\n" * 300_000, "is too large: it has more than 1024 KiB"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(tmp_path, load, content, words):
    """It is named with the reason."""
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    (problem,) = problems_of(load, file)
    assert str(file) in problem
    assert words in problem


def test_words_are_as_they_are_written(tmp_path):
    """YAML 1.1 reads ``no`` as false, ``010`` as 8 and 1:30 as 90; a text, a number and a switch are what they say."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "dataset: no\nrun_dir: 1.10\nseed: 010\nmax_steps: 0x10\nbf16: off\nlr: 1e-4\ntokenizer: 2026-01-02\n"
    )
    run = load_file(file)
    assert (run.dataset, run.run_dir, run.seed, run.max_steps) == ("no", "1.10", 10, 16)
    assert (run.bf16, run.lr, run.tokenizer) == (False, 1e-4, "2026-01-02")
    file.write_text("max_steps: 1:30\n")
    assert problems_of(load_file, file) == [f"{file}:1:12: max_steps: got 1:30, need a whole number"]


def test_a_run_may_have_anchors_and_merge_keys(tmp_path):
    """Keys of the mapping itself win; the first of several merged mappings wins over the next."""
    file = tmp_path / "run.yaml"
    file.write_text("lr: &rate 1e-2\nmin_lr: *rate\n<<: [{max_steps: 7, lr: 3}, {max_steps: 8, seed: 5}]\n")
    run = load_file(file)
    assert (run.lr, run.min_lr, run.max_steps, run.seed) == (1e-2, 1e-2, 7, 5)
    file.write_text("<<: 5\n")
    assert problems_of(load_file, file) == [f"{file}:1:5: << adds the keys of a mapping; write `<<: *anchor`"]


def test_an_option_and_its_alias_are_one(tmp_path):
    """``hidden_width`` beside ``hidden_size`` is refused with both lines."""
    file = tmp_path / "run.yaml"
    file.write_text("hidden_size: 96\nlr: 1\nhidden_width: 48\n")
    message = "hidden_width is the same option as hidden_size in line 1; keep one of them"
    assert problems_of(load_file, file) == [f"{file}:3:1: {message}"]


def test_a_conflict_has_a_place(tmp_path):
    """The line of the first of the options that the file sets."""
    file = tmp_path / "run.yaml"
    file.write_text("\nplateau: 0.7\nwarmup: 0.7\n")
    assert problems_of(load_file, file) == [f"{file}:3:9: warmup 0.7 and plateau 0.7 add up to more than 1"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    """An editor's mark before the first key does not belong to the key; an empty run has the defaults."""
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xef\xbb\xbfmax_steps: 3\n")
    assert load_file(file).max_steps == 3
    file.write_text("# nothing yet\n")
    assert load_file(file).max_steps == 5000
    assert problems_of(spec.load, file) == [f"{file}: got nothing, need `key: value` lines of a job"]


def test_values_have_yamls_types_on_request():
    """A file in a job keeps its numbers."""
    document = YamlDocument.parse("files: {a: {stage: 3, on: yes, day: 2026-01-02}}", file=Path("job.yaml"))
    assert document.data == {"files": {"a": {"stage": "3", "on": "yes", "day": "2026-01-02"}}}
    assert document.typed(("files", "a", "stage")) == 3
