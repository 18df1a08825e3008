"""A dataset of several languages and scripts is filtered by the rules of each."""

import json
import random

import pytest

from podwright_testing.planted import documents_of
from podwright_training.__main__ import main
from podwright_training.commands.curate import _lacking
from podwright_training.curation.languages import is_code, is_unspaced, language_codes, language_problems
from podwright_training.curation.pipeline_steps import Words
from podwright_training.curation.quality_filters import MaskPersonal

DICE = random.Random(5)  # noqa: S311 - not for secrets
WORDS = {
    "en": "the old man walked through a silent city in evening and thought of his children who had moved to another "
    "country many years ago lights still burned but nobody looked out with them that have",
    "de": "der alte Mann ging am Abend durch die stille Stadt und dachte an seine Kinder die vor vielen Jahren in ein "
    "anderes Land gezogen waren in den Straßen brannte noch Licht aber niemand sah aus dem Fenster",
    "fr": "le vieil homme marchait le soir dans la ville silencieuse et pensait à ses enfants qui étaient partis "
    "depuis longtemps dans un autre pays les rues étaient encore éclairées mais personne ne regardait par la fenêtre",
    "zh": " ".join("老人晚上在安静的城市里走路想着很多年前搬到别的国家去的孩子们街上的灯还亮着"),
}
SENTENCES, SENTENCE_WORDS = 12, {"zh": 25}
STATEMENTS = """\
function f{0}(a, b) {{
  const c = a + {0};
  if (c > b) {{
    return c;
  }}
}}

module.exports = {{ f{0} }};
"""
DOCUMENTS = 20  # of each language


def prose(language):
    """A text of random words of a language."""
    words, count = WORDS[language].split(), SENTENCE_WORDS.get(language, 12)
    space, end = ("", "。") if language == "zh" else (" ", ".")
    return "\n".join(space.join(DICE.choices(words, k=count)).capitalize() + end for _ in range(SENTENCES))


@pytest.fixture
def curate(text_dataset, tmp_path, capsys):
    """Curates texts; returns what is left, the manifest's steps by name, and what was printed."""

    def curate(texts, *more):
        (tmp_path / "raw").mkdir()
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / "raw" / "part.jsonl").write_text("".join(lines))
        output, tokenizer = tmp_path / "tokens", text_dataset / "tokenizer"
        fixed = ("--dataset-config-name=none", "--workers=1", f"--dataset={tmp_path / 'raw'}", f"--output={output}")
        assert main(["curate", *fixed, f"--tokenizer={tokenizer}", *more]) == 0
        steps = {step["step"]: step for step in json.loads((output / "manifest.json").read_text())["steps"]}
        return list(documents_of(output, tokenizer)), steps, capsys.readouterr().out

    return curate


@pytest.mark.slow
def test_default_filters_keep_every_language_and_code(curate):
    """Prose is judged by its own language's words, whether spaces divide them or not, and code not at all."""
    texts = [prose(language) for language in WORDS for _ in range(DOCUMENTS)]
    code = ["\n".join(STATEMENTS.format(number + part) for part in range(9)) for number in range(0, 900, 45)]
    keywords = ["\n".join(["cheap", "shoes", "online", "buy", "now", "shop"] * 12)]
    left, steps, _ = curate([*texts, *code, *keywords], "--keep-near")
    assert set(left) == {*texts, *code}
    assert steps["languages"]["languages"] == {**dict.fromkeys((*WORDS, "code"), DOCUMENTS), "en": DOCUMENTS + 1}
    assert steps["gopher_quality"]["not_judged"] == DOCUMENTS
    assert (steps["gopher_quality"]["removed"], steps["gopher_repetition"]["removed"]) == (1, 0)


@pytest.mark.slow
def test_languages_that_were_removed_are_counted(curate):
    """The reason is the language; a language that no document is in is named, and a step that removes much."""
    english, german = [[prose(language) for _ in range(DOCUMENTS)] for language in ("en", "de")]
    left, steps, printed = curate([*english, *german], "--filters", "--languages", "en", "ja", "--keep-near")
    assert set(left) == set(english)
    assert steps["languages"]["reasons"] == {"de": DOCUMENTS}
    lines = printed.splitlines()
    assert f"languages removed {DOCUMENTS} of {2 * DOCUMENTS} documents, {DOCUMENTS} for de" in lines
    assert "languages: no document is in ja" in lines


@pytest.mark.slow
def test_near_duplicates_without_spaces(curate):
    """Chinese texts that differ in two characters lose one of each pair, and others stay."""
    texts = [prose("zh") for _ in range(DOCUMENTS)]
    copies = [text[:90] + "甲" + text[91:200] + "乙" + text[201:] for text in texts]
    left, steps, printed = curate([*texts, *copies, *(prose("zh") for _ in range(DOCUMENTS))], "--filters")
    assert len(left) == 2 * DOCUMENTS
    assert (steps["near duplicates"]["clusters"], steps["near duplicates"]["largest_cluster"]) == (DOCUMENTS, 2)
    assert f"found {DOCUMENTS} clusters, the largest of 2 documents" in printed


@pytest.mark.slow
def test_changes_inside_documents_are_counted(curate):
    """Lines that c4 removes, and addresses that are replaced."""
    menu = "\nHome | About | Login\nWrite to jane.doe@corp-mail.com or 2001:4860:4860::8888 or 8.8.4.4 about this."
    texts = [prose("en") + menu for _ in range(DOCUMENTS)]
    left, steps, printed = curate(texts, "--filters", "c4", "--mask-personal", "--keep-near")
    assert (steps["c4"]["changed_documents"], steps["c4"]["removed_lines"]) == (DOCUMENTS, DOCUMENTS)
    masks = {key: value for key, value in steps["mask personal"].items() if key.startswith("masked_")}
    kinds = ("masked_email_addresses", "masked_ipv6_addresses", "masked_ipv4_addresses")
    assert masks == dict.fromkeys(kinds, DOCUMENTS)
    assert all(text.endswith("Write to email@example.com or 2001:db8::1 or 192.0.2.1 about this.") for text in left)
    assert f"changed {DOCUMENTS} documents, removed {DOCUMENTS} lines of them" in printed


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("at 2001:4860:4860:0:0:0:0:8888.", "at 2001:db8::1."),
        ("64 bytes from 2001:4860:4860::8888: icmp_seq=1", "64 bytes from 2001:db8::1: icmp_seq=1"),
        ("[2A00:1450:4001:830::200e]:443", "[2001:db8::1]:443"),
        ("2001:db8::5 fe80::1 ::1 fd00::7", None),  # documentation, link, loopback, private
        ("std::vector a::b dead::beef 12:30:45 aa:bb:cc:dd:ee:ff 1::2", None),
    ],
)
def test_ipv6_addresses(text, masked):
    """Public ones go; others, times, hardware addresses and names of C++ stay."""
    assert MaskPersonal()._masked(text) == (masked or text)


@pytest.mark.parametrize(
    ("code", "meant"),
    [("jp", "ja"), ("EN", "en"), ("de-AT", "de"), ("german", "de"), ("chinise", "zh"), ("zho", "zh"), ("klingon", "")],
)
def test_a_wrong_language_names_the_right_one(code, meant):
    """All codes are listed, and the one that was probably meant."""
    (problem,) = language_problems((code, "en", "code"))
    assert problem.startswith(f"languages: got {code}, need some of ")
    assert problem.endswith(f"; did you mean {meant}?" if meant else f" {language_codes()[-1]}")


def test_an_unknown_language_is_refused_before_anything_is_read(text_dataset, tmp_path, capsys):
    """The exit status is that of a wrong command."""
    named = (
        f"--dataset={text_dataset}",
        f"--tokenizer={text_dataset / 'tokenizer'}",
        f"--output={tmp_path / 'tokens'}",
    )
    assert main(["curate", *named, "--languages", "en", "jp"]) == 2
    assert "did you mean ja?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_all_documents_in_one_split():
    """The command says what helps, also if there is only one document."""
    assert _lacking({"train": 0, "validation": 9}) == (
        "training needs training documents: curate again with a --validation-fraction near 0.22"
    )
    assert _lacking({"train": 0, "validation": 1}).endswith("add some to the dataset")


def test_code_and_prose_are_told_apart():
    """A poem with semicolons and a page of menus are no code; Python, HTML and Go are."""
    poem = "The woods are lovely, dark and deep;\nBut I have promises to keep,\nAnd miles to go,\nBefore I sleep."
    menu = "Home | About | Login\nCheap shoes (new)\nImport taxes explained\nReturn policy"
    chat = "\n".join(f"<alice> hello everybody, this is line {number}" for number in range(5))
    statute = "\n".join(f"({letter}) the name and address of the person concerned;" for letter in "abcde")
    assert not any(map(is_code, (poem, menu, chat, statute, prose("de"), prose("zh"))))
    python = (
        "import os\n\n\ndef name(path):\n    '''Return it.'''\n    base = os.path.basename(path)\n    return base\n"
    )
    page = "<html>\n<body>\n<p>Text of a page.</p>\n</body>\n</html>"
    go = 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("x")\n}\n'
    assert all(map(is_code, (python, page, go)))


def test_words_of_scripts_without_spaces():
    """Each character is a word, with its marks; other words are whole."""
    words = Words()
    assert words.word_tokenize("我们用Python写。ไทย it's") == [
        "我",
        "们",
        "用",
        "Python",
        "写",
        "。",
        "ไ",
        "ท",
        "ย",
        "it's",
    ]
    assert words.word_tokenize("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert words.sent_tokenize("你好。再见。Yes. No.") == ["你好。", "再见。", "Yes.", "No."]
    assert is_unspaced("我们用Python写。")
    assert not is_unspaced("Das Zeichen 我 heißt ich.")
