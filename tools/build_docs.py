# ruff: noqa: SLF001 -- argparse has no public list of a parser's arguments
"""Build the documentation site: pages of the repository as they are, and the reference, written from the code.

python tools/build_docs.py [FOLDER]      default: site; open FOLDER/index.html, no server needed
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

from podwright import cli
from podwright.check.checked_settings import codes
from podwright.check.key_descriptions import Key, job_keys, keys
from podwright_common.command_line import Parser
from podwright_training import __main__ as trainer
from podwright_training.config.run_schema import run_schema
from podwright_training.config.train_config import SECTIONS
from podwright_training.events import EVENTS, written_fields

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "docs/**/*.svg", "docs/grafana/*", "schemas/*.json", "LICENSE", "NOTICE")
LINKED = ("examples/**/*.yaml", "examples/**/*.py", "pyproject.toml", "cluster.yaml")  # by pages
SCANNED = ("lifecycle_scripts/podwright_bootstrap/collectors",)  # for metrics
GENERATOR = ROOT / ".cache" / "docs" / "bin" / "mkdocs"  # which `make docs` installs
FOREIGN_SHIM, SHIM = "https://unpkg.com/iframe-worker/shim", "assets/javascripts/iframe-worker.js"
_COMMENT = re.compile(r"^ *<!-- (?:run|run by|not run|rehearsal): [^>]*-->\n", re.MULTILINE)
_ITEM = re.compile(r"(?:-|\d+\.) +")
TABLES = ("FIELDS", "DIAGNOSTICS")  # of metrics, in collectors: something, name, meaning
API = {  # what scripts may import, by module
    "podwright.check.load": ("load", "load_run"),
    "podwright.check.checked_settings": ("check", "check_live", "codes", "Report"),
    "podwright.check.findings": ("Finding",),
    "podwright.operations.deployment.outputs": ("outputs",),
    "podwright_stacks.app": ("synthesize",),
    "podwright_training.run_folder": ("RunFolder",),
    "podwright_training.commands.prepare": ("prepare", "Prepared"),
    "podwright_training.commands.tokenize": ("tokenize", "Written"),
    "podwright_training.commands.consolidate": ("consolidate",),
    "podwright_training.commands.evaluate": ("evaluate",),
    "podwright_training.commands.generate": ("generate",),
}
WIDTH, SIGNATURE_WIDTH = "88", 76  # columns


def main() -> int:
    """Write the pages into a working folder and run the generator, which fails on a broken link."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    pages = ROOT / ".cache" / "docs-pages"
    shutil.rmtree(pages, ignore_errors=True)
    write_pages(pages)
    command = [
        str(GENERATOR),
        "build",
        "--strict",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
        "--site-dir",
        str(target),
    ]
    built = subprocess.run(
        command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False, capture_output=True, text=True
    )
    if built.returncode == 0:
        _search_without_network(target)
        print(f"{target / 'index.html'}: {len(list(target.rglob('*.html')))} pages, no broken link")
    else:
        print(built.stderr, file=sys.stderr)
    return built.returncode


def _search_without_network(site: Path) -> None:
    """Serve the search's one foreign script from the site itself: browsers give files no workers, and it stands in."""
    shutil.copyfile(ROOT / "node_modules" / "iframe-worker" / "shim" / "index.js", site / SHIM)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        here = "../" * (len(page.relative_to(site).parts) - 1)
        text = text.replace(FOREIGN_SHIM, here + SHIM)
        if foreign := re.findall(
            r'<(?:script|link)[^>]*(?:src|href)="(https?://[^"]*\.(?:js|css)|https?://unpkg[^"]*)"', text
        ):
            raise SystemExit(f"{page} loads from elsewhere: {', '.join(foreign)}")
        page.write_text(text, encoding="utf-8")


def write_pages(folder: Path) -> None:
    """Write all pages of the site: copies of the repository's, and the reference."""
    for pattern in (*PAGES, *LINKED):
        for source in ROOT.glob(pattern):
            copy = folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                copy.write_text(for_generator(source.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copyfile(source, copy)
    (folder / "reference").mkdir(exist_ok=True)
    for name, page in reference().items():
        (folder / "reference" / f"{name}.md").write_text(page, encoding="utf-8")


def for_generator(text: str) -> str:
    """Return a page for Python-Markdown, whose lists need an empty line before them and four spaces within.

    GitHub needs neither. Comments, which are for tests, go.
    """
    lines: list[str] = []
    item = 0  # columns of the list item's text, or 0 outside of a list
    fence = is_loose = False  # loose: an item has paragraphs or blocks
    for line in _COMMENT.sub("", text).splitlines():
        is_fence = line.lstrip().startswith("```")
        mark = None if fence else _ITEM.match(line)
        if mark:
            if (not item or is_loose) and lines and lines[-1]:
                lines.append("")
            item = len(mark[0])
        elif not fence and line[:1].strip():
            item, is_loose = 0, False
        inner = item and not mark and line.startswith(" " * item)
        if is_fence and not fence and inner and lines[-1]:
            lines.append("")
        lines.append(f"    {line[item:]}" if inner else line)
        if is_fence and fence and inner:
            is_loose = True
            lines.append("")
        fence ^= is_fence
    return "\n".join(lines) + "\n"


def reference() -> dict[str, str]:
    """Return the pages of the reference, by name; each comes from the code that owns its facts."""
    os.environ["COLUMNS"] = WIDTH
    for warning in ("DEPRECATED", "END_OF_LIFE"):  # before the API's module of stacks starts the kit's Node
        os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")
    return {
        "cluster_yaml": "\n".join(_settings()),
        "job_yaml": "\n".join(_job()),
        "run_yaml": "\n".join(_options()),
        "podwright": "\n".join(_help("podwright", _podwright())),
        "podwright_train": "\n".join(_help("podwright-train", _podwright_train())),
        "codes": "\n".join(_codes()),
        "metrics": "\n".join(_metrics()),
        "events": "\n".join(_events()),
        "python_api": "\n".join(_python_api()),
    }


def _settings() -> Iterator[str]:
    yield "# cluster.yaml\n\nEvery key, as `podwright explain` prints it. `[]` marks the items of a list."
    yield "[The JSON Schema](../schemas/cluster.json) has the same for editors."
    yield from _keys(keys())


def _job() -> Iterator[str]:
    yield "# job.yaml\n\nEvery key of [another trainer's job](../docs/how_to/other_trainers.md), as `podwright explain"
    yield "--job` prints it. [The JSON Schema](../schemas/job.json) has the same for editors.\n"
    yield from map(_key, job_keys())


def _keys(found: Iterable[Key]) -> Iterator[str]:
    section = ""
    for key in found:
        first = key.name.partition(".")[0]
        if first != section:
            section = first
            yield f"\n## {section}\n"
        yield _key(key)


def _key(key: Key) -> str:
    variant = f" (source: {key.source})" if key.source else ""
    return f"**`{key.name}`**{variant} · {key.values} · {key.default}<br>\n{key.description}\n"


def _options() -> Iterator[str]:
    properties = run_schema()["properties"]
    yield "# run.yaml\n\nEvery option of a training run. Each is also a flag of `podwright-train train`, with dashes."
    yield "[The JSON Schema](../schemas/run.json) has the same for editors."
    for title, section in SECTIONS.items():
        yield f"\n## {title}\n\n{section.__doc__}\n\n| option | default | meaning |\n|---|---|---|"
        for item in fields(section):
            default = "" if item.default in (None, MISSING) else f"`{item.default}`"
            choices = ", ".join(f"`{choice}`" for choice in properties[item.name].get("examples", ()))
            text = item.metadata["text"].replace("|", "\\|") + (f" One of {choices}." if choices else "")
            yield f"| `{item.name}` | {default} | {text} |"


def _help(program: str, commands: Iterator[tuple[str, str, argparse.ArgumentParser]]) -> Iterator[str]:
    yield f"# {program}\n\nThe help of every command. [Commands](../docs/cli.md) has more words."
    for name, summary, command in commands:
        yield f"\n## {name}\n\n{summary[:1].upper()}{summary[1:]}.\n"
        for parser in _with_subcommands(command):
            yield f"```text\n{parser.format_help().rstrip()}\n```\n"


def _podwright() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for command in cli.all_commands():
        parser = Parser(prog=f"podwright {command.name}")
        command.add_arguments(parser)
        yield command.name, command.help, parser


def _podwright_train() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for name, (_, summary) in trainer.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"podwright-train {name}")
        trainer._add(parser, name)
        yield name, summary, parser


def _with_subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _with_subcommands(below)


def _codes() -> Iterator[str]:
    yield "# Finding codes\n\nWhat `podwright check` reports, by code; `podwright explain CODE` prints the same."
    for code, meaning in sorted(codes().items()):
        yield f"\n## {code}\n\n{meaning}"


def _python_api() -> Iterator[str]:
    yield "# Python API\n\nWhat scripts may import, with the docstrings of the code."
    yield "[Constructs](../docs/constructs.md) are for apps of your own. Everything else is internal and may change."
    for name, words in API.items():
        module = import_module(name)
        yield f"\n## {name}\n\n{_paragraphs(module)}"
        for word in words:
            yield from _documented(getattr(module, word), word)


def _documented(thing: Any, name: str) -> Iterator[str]:
    """Yield the signature and docstring of a function, or of a class with its public methods and properties."""
    signature = fill(name + _signature(thing), SIGNATURE_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    yield f"\n```python\n{signature}\n```\n\n{_paragraphs(thing)}"
    if not inspect.isclass(thing):
        return
    for below, member in vars(thing).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if not below.startswith("_") and inspect.isfunction(function):
            shown = (
                f"{below}{_signature(function)}" if function in {member, getattr(member, "__func__", None)} else below
            )
            yield f"\n- `{name}.{shown}`: {_paragraphs(function).partition(chr(10))[0]}"


def _signature(thing: Any) -> str:
    """Return the arguments and the type of the result; types are texts in our code, and lose their quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))


def _paragraphs(thing: Any) -> str:
    """Return the docstring; its sections' items become lists."""
    text = re.sub(r"^    (\S)", r"- \1", (inspect.getdoc(thing) or "").replace("``", "`"), flags=re.MULTILINE)
    return re.sub(r"^(\w+:)$", r"\1\n", text, flags=re.MULTILINE)


def _metrics() -> Iterator[str]:
    yield "# Metrics\n\nWhat nodes send to Prometheus with `nodes.observability`; values are in base units."
    for folder in SCANNED:
        for path in sorted((ROOT / folder).glob("*.py")):
            found = list(_families(ast.parse(path.read_text(encoding="utf-8"))))
            if found:
                yield f"\n## {path.stem.replace('_', ' ')}\n\n| metric | meaning |\n|---|---|"
                yield from (f"| `{name}` | {meaning} |" for name, meaning in found)


def _events() -> Iterator[str]:
    yield "# metrics.jsonl\n\nThe events of a run, one JSON object per line, in `metrics.jsonl` in its folder. Besides"
    yield "the fields below, each has `event`, its kind, and `time`, in seconds since 1970. Events of another trainer"
    yield "have `log_byte`, the byte of its log at which reading continues. NaN and infinity are null. After a resume,"
    yield "steps that were done before occur twice: the last event of a step counts."
    for event in EVENTS:
        yield f"\n## {event.kind}\n\n{inspect.getdoc(event)}\n\n| field | type | meaning |\n|---|---|---|"
        for declared in written_fields(event):
            if declared.name not in ("time", "log_byte"):
                yield f"| `{declared.name}` | {_json_type(str(declared.type))} | {declared.metadata['doc']} |"


def _json_type(hint: str) -> str:
    """Return a field's type in words of JSON."""
    names = {
        "int": "whole number", "float": "number", "str": "text", "float | str": "text or number",
        "Sequence[str]": "list of texts", "Mapping[str, int]": "object of whole numbers",
        "Mapping[str, float]": "object of numbers",
    }  # fmt: skip
    return names[hint.removesuffix(" | None")]


def _families(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each metric that a module declares: alone, or as rows of a table."""
    rows: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and getattr(node.targets[0], "id", "") in TABLES
        ):
            values = [
                [getattr(item, "value", "") for item in row.elts]
                for row in node.value.elts
                if isinstance(row, ast.Tuple)
            ]
            rows += [(str(name), str(meaning)) for _, name, meaning, *_ in values]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Family" and len(node.args) > 1:
            name, meaning = node.args[:2]
            if isinstance(name, ast.Constant) and isinstance(meaning, ast.Constant):
                yield str(name.value), str(meaning.value)
            elif isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
                prefix = str(name.values[0].value)
                yield from ((prefix + word, text) for word, text in rows)


if __name__ == "__main__":
    sys.exit(main())
