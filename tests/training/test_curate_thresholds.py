"""Every threshold of the filters can be set, and documents with words of an evaluation set are removed and counted."""

import inspect
import json
import random
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document

from podwright_training.__main__ import main
from podwright_training.curation import decontamination
from podwright_training.curation.quality_filters import _FILTERS, LANGUAGE, ChooseLanguages, JudgeQuality
from podwright_training.curation.settings import FILTERS
from podwright_training.curation.thresholds import LANGUAGES, THRESHOLDS, thresholds_in_use
from podwright_training.data.bad_data import DataError

PROSE = (  # of a made-up town
    "The harbour of the town lies to the north, and its old walls have kept the wind from many ships. Boats that "
    "bring fish arrive early. A keeper with a lamp walks along the pier each night. Children count the gulls from the "
    "bridge, while merchants argue about the price of salt. When fog covers the bay, a bell is rung. "
    "Visitors rarely stay for long, but they remember the smell of tar, rope and bread. "
)
# A document that each threshold of a filter removes, or keeps, at the two values.
STRICTER = {
    "min_doc_words": 2000, "max_doc_words": 20, "min_avg_word_length": 9, "max_avg_word_length": 2,
    "max_symbol_word_ratio": 0, "max_bullet_lines_ratio": 0, "max_ellipsis_lines_ratio": 0,
    "max_non_alpha_words_ratio": 1, "min_stop_words": 9, "dup_line_frac": 0, "dup_para_frac": 0,
    "dup_line_char_frac": 0, "dup_para_char_frac": 0, "top_2_gram": 0, "top_3_gram": 0, "top_4_gram": 0,
    **{f"dup_{n}_gram": 0 for n in range(5, 11)}, "min_num_sentences": 50, "min_words_per_line": 900,
    "max_word_length": 2, "line_punct_thr": 1, "short_line_thr": 0, "short_line_length": 10_000,
    "char_duplicates_ratio": 0, "new_line_ratio": 0,
}  # fmt: skip
LOOSE_AT_ZERO = ("line_punct_thr", "max_non_alpha_words_ratio")
WITH_FAULTS = "\n\n".join(
    [f"- {PROSE}# 4 .", "And then they wait...", "Salt, rope and bread", PROSE.strip(), PROSE.strip()]
)


def judged(name, text, **thresholds):
    """Return whether a filter with some thresholds keeps an English text, and what it leaves of it."""
    document = Document(text=text, id="1", metadata={LANGUAGE: "en"})
    return JudgeQuality(name, thresholds).filter(document) is True, document.text


def test_defaults_are_those_of_datatrove():
    """Each threshold is an argument of its filter, with the same default; n-grams are pairs there."""
    for name, threshold in THRESHOLDS.items():
        if threshold.filter == LANGUAGES:
            continue
        arguments = inspect.signature(_FILTERS[threshold.filter][0].__init__).parameters
        if name.endswith("_gram"):
            kind, length, _ = name.split("_")
            assert dict(arguments[f"{kind}_n_grams"].default)[int(length)] == threshold.default
        else:
            assert arguments[name].default == threshold.default
    assert {threshold.filter for threshold in THRESHOLDS.values()} == {LANGUAGES, *FILTERS}


@pytest.mark.parametrize("name", STRICTER)
def test_each_threshold_decides(name):
    """At its strictest every threshold alone removes a document, or more lines of it, than the opposite."""
    step = THRESHOLDS[name].filter
    loose = {
        key: 0 if key.startswith("min_") or key in LOOSE_AT_ZERO else 10**6
        for key, threshold in THRESHOLDS.items()
        if threshold.filter == step
    }
    if step == "fineweb":
        loose |= {"short_line_length": 10_000 if name == "short_line_thr" else 1}
        loose |= {"short_line_thr": 0.5} if name == "short_line_length" else {}
    is_kept, text = judged(step, WITH_FAULTS, **loose)
    assert is_kept
    assert judged(step, WITH_FAULTS, **{**loose, name: STRICTER[name]}) != (True, text)


def test_a_threshold_applies_to_scripts_without_spaces():
    """There, the shortest n-gram is of four characters instead of two words, and has the same name."""
    text = "".join(random.Random(1).choices("山川田人日月火水木金土上下左右大小中天気空雨風花鳥", k=400))  # noqa: S311
    document = Document(text=text, id="1", metadata={LANGUAGE: "ja"})
    assert JudgeQuality("gopher_repetition", {}).filter(document) is True
    assert JudgeQuality("gopher_repetition", {"top_2_gram": 0}).filter(document) == (False, "top_4_gram")


MINIMA = [name for name, threshold in THRESHOLDS.items() if threshold.is_minimum and threshold.filter != LANGUAGES]


@pytest.mark.parametrize("name", MINIMA)
def test_a_minimum_of_zero_keeps_all(name):
    """At 0 a minimum removes no document, not even one whose share is 0, whatever the threshold's name."""
    text = "12 34 .\n56 78" if name == "max_non_alpha_words_ratio" else "Gulls fly\nand ships sail"
    step = THRESHOLDS[name].filter
    loose = {
        key: 0 if threshold.is_minimum else threshold.limit if threshold.limit == 1 else 10**6
        for key, threshold in THRESHOLDS.items()
        if threshold.filter == step and key != "short_line_length"
    }
    unpunctuated = step != "c4"
    assert judged(step, text if unpunctuated else text.replace("y\n", "y.\n") + ".", **loose)[0]


def test_minima_are_those_that_remove_lower_values():
    """Every minimum has a stricter value above its default, and every maximum one below it."""
    for name, value in STRICTER.items():
        threshold = THRESHOLDS[name]
        assert threshold.is_minimum == (value > threshold.default) or name == "short_line_length"


def test_a_greatest_share_of_one_keeps_all():
    """Overlapping n-grams have more characters than the document that they are of."""
    text = " ".join(["gulls"] * 400)
    loose = {name: 1 for name, threshold in THRESHOLDS.items() if threshold.filter == "gopher_repetition"}
    assert judged("gopher_repetition", text, **loose)[0]
    assert not judged("gopher_repetition", text, **{**loose, "top_2_gram": 0.99})[0]


@pytest.mark.parametrize(
    ("language", "text", "name"),
    [
        ("ko", "부두에는 배가 많고 아이들은 갈매기를 센다 " * 20, "min_stop_words"),
        ("th", "เรือจอดอยู่ที่ท่าและเด็กนับนก" * 20, "min_stop_words"),
        ("th", "เรือจอดอยู่ที่ท่าและเด็กนับนก" * 20, "min_avg_word_length"),
        ("zh", "船在港口里的孩子们数着海鸥" * 20, "min_avg_word_length"),
    ],
)
def test_a_threshold_without_a_meaning_in_a_language_stays_off(language, text, name):
    """Without a list, a language has no stop words to count, and a character that counts as a word has no length."""
    document = Document(text=text, id="1", metadata={LANGUAGE: language})
    assert JudgeQuality("gopher_quality", {}).filter(document) is True
    assert JudgeQuality("gopher_quality", {name: THRESHOLDS[name].default}).filter(document) is True


def test_an_uncertain_language_is_removed():
    """The threshold is the least probability of the language; the default keeps all."""
    document = Document(text="qwe rty 123 uio asd", id="1")
    assert ChooseLanguages(()).filter(document) is True
    assert ChooseLanguages((), threshold=0.9).filter(document) == (False, "uncertain")
    assert ChooseLanguages((), threshold=0.9).filter(Document(text=PROSE, id="2")) is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["min_doc_word=3"], "thresholds: unknown name min_doc_word; did you mean min_doc_words?"),
        (["a=3"], "thresholds: unknown name a; need one of language_threshold, min_doc_words, "),
        (["min_doc_words"], "thresholds: got min_doc_words, need NAME=NUMBER with a number of at least 0"),
        (["min_doc_words=-1"], "thresholds: got min_doc_words=-1, need NAME=NUMBER"),
        (["new_line_ratio=nan"], "thresholds: got new_line_ratio=nan, need"),
        (["dup_line_frac=30"], "thresholds: got dup_line_frac=30, need a share from 0 to 1"),
        (["top_2_gram=1.5"], "thresholds: got top_2_gram=1.5, need a share from 0 to 1"),
        (["language_threshold=65"], "thresholds: got language_threshold=65, need a share from 0 to 1"),
        (
            ["min_doc_words=100", "max_doc_words=10"],
            "thresholds: min_doc_words=100 and max_doc_words=10 leave no document: need a minimum of at most",
        ),
        (["min_doc_words=100001"], "thresholds: min_doc_words=100001 and max_doc_words=100000 leave no document"),
        (["max_avg_word_length=2"], "thresholds: min_avg_word_length=3 and max_avg_word_length=2 leave no"),
        (
            ["dup_line_frac=0.3", "dup_line_frac=0.4"],
            "thresholds: got dup_line_frac=0.3 and dup_line_frac=0.4, need each name once",
        ),
        (
            ["dup_line_frac=0.3", "--thresholds", "dup_line_frac=0.4"],
            "thresholds: got dup_line_frac=0.3 and dup_line_frac=0.4, need each name once",
        ),
        (
            ["dup_line_frac=0.3", "--decontaminate", "mmlu=a.jsonl", "mmlu=b.jsonl"],
            "decontaminate: got mmlu=a.jsonl and mmlu=b.jsonl, need each name once",
        ),
        (["new_line_ratio=1"], "thresholds: new_line_ratio is one of fineweb, which is not among the filters"),
    ],
)
def test_a_wrong_threshold_is_one_line(words, message, tmp_path, capsys):
    """Unknown or repeated names, values out of range, and thresholds of filters that do not run are refused."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    flags = [f"--dataset={tmp_path}", "--dataset-config-name=none", "--tokenizer=a", f"--output={tmp_path / 'out'}"]
    assert main(["curate", *flags, "--thresholds", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


# ---- decontamination ----------------------------------------------------------------------------


def random_words(count, seed):
    """Words that no other text has in this order."""
    return random.Random(seed).choices([f"{a}{b}o" for a in "bdfgklmnprst" for b in "aeiou"], k=count)  # noqa: S311


QUESTION, LAST_QUESTION = " ".join(random_words(20, 1)), " ".join(random_words(13, 2))


@pytest.fixture
def evaluation(tmp_path):
    """Two sets: JSON lines with questions of other columns, and a folder of Parquet with a training split."""
    rows = [{"question": f"{QUESTION}?", "answer": "A"}, {"question": "too short", "choices": ["A", "B"]}]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "cloze"
    folder.mkdir()
    pq.write_table(pa.table({"ctx": [LAST_QUESTION], "ind": [1]}), folder / "validation-0.parquet")
    pq.write_table(pa.table({"ctx": [PROSE], "ind": [1]}), folder / "train-0.parquet")
    return {"qa": str(tmp_path / "qa.jsonl"), "cloze": str(folder)}


def test_thirteen_words_of_an_evaluation_set_are_found_in_any_writing(evaluation, tmp_path):
    """Case, punctuation and line ends do not matter; twelve words stay, and so does the training split's text."""
    sets = decontamination.read_evaluation_sets(evaluation, columns=("question", "ctx"), words=13)
    described = {name: item.described() for name, item in sets.items()}
    assert {name: (item["files"], item["texts"], item["short_texts"]) for name, item in described.items()} == {
        "qa": (1, 1, 1),
        "cloze": (1, 1, 0),
    }
    assert described["qa"]["sequences"] == 8
    decontamination.write_index(tmp_path / "index", sets.values())
    step = decontamination.RemoveContaminated(tmp_path / "index", tuple(sets), words=13)
    texts = {
        f"Before it, {QUESTION.upper()} after it.": (False, "qa"),
        f"Before it, {', '.join(QUESTION.split()[5:18])}.": (False, "qa"),
        LAST_QUESTION.replace(" ", "\n"): (False, "cloze"),
        " ".join(QUESTION.split()[:12]): True,
        " ".join([*LAST_QUESTION.split()[1:], "x"]): True,
        PROSE: True,
        "": True,
    }
    assert {text: step.filter(Document(text=text, id="1")) for text in texts} == texts


def is_removed(evaluation_text, text, folder):
    """Return whether a document is removed by an evaluation set of one text."""
    (folder / "one.jsonl").write_text(json.dumps({"text": evaluation_text}))
    sets = decontamination.read_evaluation_sets({"one": str(folder / "one.jsonl")}, columns=("text",), words=13)
    decontamination.write_index(folder / "one.npz", sets.values())
    decontamination._index.cache_clear()  # Another text had the same path.
    step = decontamination.RemoveContaminated(folder / "one.npz", ("one",), words=13)
    return step.filter(Document(text=text, id="1")) is not True


ACCENTED = "Für die Öfen nahm José Äpfel, Zoë kam über größere Flüsse flink davon"  # 13 words


@pytest.mark.parametrize(
    "text",
    [
        unicodedata.normalize("NFD", ACCENTED),
        "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in ACCENTED),  # fullwidth
        ACCENTED.replace("fl", "\N{LATIN SMALL LIGATURE FL}"),
        ACCENTED.upper(),  # writes two letters for a sharp s
        ACCENTED.replace("pf", "p\N{SOFT HYPHEN}f").replace("ah", "a\N{ZERO WIDTH SPACE}h"),
    ],
    ids=["decomposed", "fullwidth", "ligature", "upper", "invisible"],
)
def test_words_are_found_in_any_form_of_unicode(text, tmp_path):
    """The same text has several encodings, on either side of the comparison."""
    assert text != ACCENTED
    assert is_removed(ACCENTED, text, tmp_path)
    assert is_removed(text, ACCENTED, tmp_path)


@pytest.mark.parametrize(
    "letters", ["山川田人日月火水木金土上下左右大小中天気空雨風花鳥", "กขคงจฉชซฌญฎฏฐฑฒณดตถทธนบปผฝ"]
)
def test_scripts_without_spaces_need_twice_as_many_characters(letters, tmp_path):
    """Two texts that cite one title of 25 characters stay; 26 are the same as 13 words, also amid other words."""
    letters = letters + letters[::-1]
    assert not is_removed(f"{letters[:25]}ー", f"{letters[:25]}。{'ア' * 30}", tmp_path)
    assert is_removed(letters[:30], f"アイウ{letters[2:28]}。", tmp_path)
    mixed = f"{letters[:12]} {' '.join(QUESTION.split()[:7])}"
    assert is_removed(mixed, f"They say {mixed}.", tmp_path)
    assert not is_removed(mixed, f"They say {mixed.rsplit(' ', 1)[0]}.", tmp_path)


def test_records_that_are_not_compared_are_counted(tmp_path):
    """A record without a text in the columns counts once, whatever the format and the reason."""
    rows = [
        {"question": QUESTION, "ctx": LAST_QUESTION}, {"ctx": LAST_QUESTION}, {"answer": "A"}, {"question": None},
        {"question": ["a", "list"], "ctx": ""},
    ]  # fmt: skip
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    (tmp_path / "set" / "dataset_info.json").write_text("{\n}\n")
    for name, columns in {"b": {"ctx": [QUESTION, None]}, "c": {"answer": ["A", "B", "C"]}}.items():
        pq.write_table(pa.table(columns), tmp_path / "set" / f"{name}.parquet")
    table = pa.table({"label": [1, 2]})
    with pa.OSFile(str(tmp_path / "set" / "d.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    sets = decontamination.read_evaluation_sets({"mixed": str(tmp_path / "set")}, columns=("question", "ctx"), words=13)
    described = sets["mixed"].described()
    assert (described["files"], described["records"], described["records_without_text"]) == (4, 12, 9)
    assert (described["texts"], described["short_texts"]) == (4, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"question": "cut', "not JSON"),
        ('["question"]', "a JSON array"),
        ('"question"', "a str, not an object"),
        ('{"question": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_damaged_record_of_an_evaluation_set_is_refused(line, reason, tmp_path):
    """It is named with its file and line, because a document with its text would pass."""
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'question': QUESTION})}\n\n{line}\n")
    with pytest.raises(
        DataError, match=rf"^decontaminate: qa: .*/a\.jsonl:3: .*{reason}.*; correct or remove this record$"
    ):
        decontamination.read_evaluation_sets({"qa": str(tmp_path / "a.jsonl")}, columns=("question",), words=13)


def test_an_evaluation_set_without_text_is_named(evaluation, tmp_path):
    """A set whose columns are others, or whose texts are short, is not taken for a clean one."""
    with pytest.raises(
        DataError, match=r"decontaminate: cloze: no text of 13 words in the columns question of .*cloze;"
    ):
        decontamination.read_evaluation_sets(evaluation, columns=("question",), words=13)
    with pytest.raises(DataError, match="or fewer words with --decontamination-words: 2 texts are shorter"):
        decontamination.read_evaluation_sets(evaluation, columns=("question",), words=30)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no file in a format of data"):
        decontamination.read_evaluation_sets({"a": str(tmp_path / "empty")}, columns=("text",), words=13)


@pytest.mark.slow
def test_the_manifest_has_thresholds_and_counts_of_each_filter(evaluation, text_dataset, tmp_path, capsys):
    """Removed documents are counted by filter beside its thresholds, and compared texts by evaluation set."""
    clean = [" ".join(["the", "of", *random_words(60, seed)]) for seed in range(10, 40)]
    leaked = [f"the of {' '.join(random_words(40, seed))} {QUESTION}" for seed in (3, 4)]
    (tmp_path / "raw").mkdir()
    lines = (json.dumps({"text": text}) + "\n" for text in [*clean, *leaked, "the of a short one"])
    (tmp_path / "raw" / "a.jsonl").write_text("".join(lines))
    words = [
        "curate", f"--dataset={tmp_path / 'raw'}", "--dataset-config-name=none", f"--output={tmp_path / 'out'}",
        f"--tokenizer={text_dataset / 'tokenizer'}", "--workers=1", "--filters", "gopher_quality",
        "--thresholds", "min_doc_words=10", "--validation-fraction=0.3",
        "--decontaminate", *(f"{name}={dataset}" for name, dataset in evaluation.items()),
    ]  # fmt: skip
    assert main(words) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    steps = {step["step"]: step for step in manifest["steps"]}
    assert steps["gopher_quality"]["reasons"] == {"gopher_short_doc": 1}
    assert manifest["thresholds"] == thresholds_in_use(["gopher_quality"], {"min_doc_words": 10})
    assert manifest["thresholds"]["gopher_quality"]["min_doc_words"] == 10
    assert (steps["decontamination"]["documents"], steps["decontamination"]["reasons"]) == (32, {"qa": 2})
    assert manifest["evaluation_sets"]["cloze"]["texts"] == 1
    printed = capsys.readouterr().out
    assert "evaluation set qa: compared 1 texts of 1 files; 1 are too short; 0 of 2 records have no text" in printed
    assert "qa 2" in printed
