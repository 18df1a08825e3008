"""Write ``docs/constructs.md``: every construct with its arguments, from the code itself.

python tools/document_constructs.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Literal, get_origin

for warning in ("DEPRECATED", "END_OF_LIFE"):  # before cdktf starts Node
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

from cdktf import App, TerraformStack, Testing  # noqa: E402 - after Node's environment is set
from constructs import Construct  # noqa: E402 - after Node's environment is set

import podwright_constructs  # noqa: E402 - after Node's environment is set
from podwright_constructs import arguments  # noqa: E402 - after Node's environment is set
from podwright_constructs.aws.provider import AwsProvider  # noqa: E402 - after Node's environment is set

EXAMPLES = Path(__file__).parents[1] / "examples" / "constructs" / "each_construct.py"
REGION = "us-west-2"
APPS = sorted((Path(__file__).parents[1] / "examples" / "library").glob("*.py"))
PAGE = Path(__file__).parents[1] / "docs" / "constructs.md"
APART = {
    "argument_types",
    "aws",
    "bindings",
    "checks",
    "construct",
    "kit",
    "kit_choice",
}  # generated code and internals
HEADER = """# Constructs

Written by `tools/document_constructs.py` from the code. A construct is `Name(scope, id, *, arguments)`; what is
called *existing*, or has no scope, takes its arguments alone; a construct with `arguments` takes the dataclass of that
type, listed first. The apps of `examples/library/` run as they are; tests run them. The
examples below are those of [`each_construct.py`](../examples/constructs/each_construct.py), and what they make is what
they made when this page was written.
"""


def main() -> int:
    """Write the page, or compare it with what would be written."""
    parser = argparse.ArgumentParser(description="Document podwright_constructs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page differs")
    page = "\n".join([HEADER, *_page()])
    if parser.parse_args().check:
        return 0 if PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _page() -> Iterator[str]:
    for module in _modules():
        classes = [item for _, item in inspect.getmembers(module, inspect.isclass) if _is_documented(item, module)]
        if classes:
            yield f"## {module.__name__.partition('.')[2]}\n\n{inspect.getdoc(module)}\n"
        for documented in sorted(classes, key=lambda item: inspect.getsourcelines(item)[1]):
            yield from _section(documented)


def _modules() -> Iterator[ModuleType]:
    for package in (arguments, podwright_constructs):
        for found in pkgutil.iter_modules(package.__path__):
            if found.name not in APART and not found.ispkg:
                yield importlib.import_module(f"{package.__name__}.{found.name}")


def _is_documented(item: type, module: ModuleType) -> bool:
    """Return whether it is a construct, or a dataclass: an existing resource or the arguments of a construct."""
    own = item.__module__ == module.__name__ and not item.__name__.startswith("_")
    return own and (issubclass(item, Construct) or is_dataclass(item))


def _section(documented: type) -> Iterator[str]:
    yield f"### {documented.__name__}\n\n{inspect.getdoc(documented)}\n"
    if issubclass(documented, Construct):
        yield _example(documented.__name__)
    apps = [
        app.name
        for app in APPS
        if re.search(rf"^from .* import .*\b{documented.__name__}\b", app.read_text(), re.MULTILINE)
    ]
    if apps:
        yield f"In {', '.join(f'[{app}](../examples/library/{app})' for app in apps)}.\n"
    texts = arguments.documentation(documented) if is_dataclass(documented) else {}
    rows = [
        f"| `{name}` | `{_type(parameter, documented)}` | {_default(parameter)} |"
        + (f" {texts.get(name, '')} |" if texts else "")
        for name, parameter in _parameters(documented, texts)
    ]
    if rows:
        head, line = "| argument | type | default |", "|---|---|---|"
        yield "\n".join([f"{head} meaning |", f"{line}---|", *rows, ""] if texts else [head, line, *rows, ""])
    methods = [f"- `{name}{_signature(method)}`: {_summary(method)}" for name, method in _methods(documented)]
    if methods:
        yield "\n".join([*methods, ""])


def _example(construct: str) -> str:
    """Return a construct's example and the resources that it makes."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", construct).lower()
    function = runpy.run_path(str(EXAMPLES)).get(name) or sys.exit(
        f"{EXAMPLES}: add a function {name}, for {construct}"
    )
    definition = inspect.getsource(function)
    code = textwrap.dedent(definition.partition('"""\n')[2])
    with tempfile.TemporaryDirectory() as folder:
        stack = TerraformStack(App(outdir=folder), "example")
        AwsProvider(stack, "aws", region=REGION)
        function(stack)
        made = json.loads(Testing.synth(stack))["resource"]
    listing = ", ".join(f"{len(made[kind])} {kind}" for kind in sorted(made))
    return f"{inspect.getdoc(function)}\n\n```python\n{code}```\n\nIt makes {listing}.\n"


def _methods(documented: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield what can be called on it: ``grant_read``, ``from_arn``."""
    for name, method in inspect.getmembers(documented, inspect.isfunction):
        if method.__module__.startswith("podwright_constructs.") and not name.startswith("_"):
            yield name, method


def _signature(method: Callable[..., object]) -> str:
    """Return a method's arguments as its caller writes them."""
    parameters = inspect.signature(method).parameters.values()
    shown = (parameter.replace(annotation=parameter.empty) for parameter in parameters if parameter.name != "self")
    return str(inspect.Signature(list(shown)))


def _summary(method: Callable[..., object]) -> str:
    return (inspect.getdoc(method) or "").partition("\n\n")[0].replace("\n", " ")


def _parameters(documented: type, texts: Iterable[str]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the arguments, in the order of their documentation if they have one."""
    parameters = inspect.signature(documented.__init__).parameters  # type: ignore[misc]
    for name in dict.fromkeys([*texts, *parameters]):
        if name not in {"self", "scope", "id_"}:
            yield name, parameters[name]


def _type(parameter: inspect.Parameter, documented: type) -> str:
    """Return a parameter's type, with the values of a ``Literal`` and without the documentation of an ``Annotated``."""
    text = re.sub(r"^Annotated\[(.*), Doc\(.*\)\]$", r"\1", str(parameter.annotation), flags=re.DOTALL)
    return re.sub(r"[A-Za-z][\w.]*", lambda word: _values(word[0], documented), text).replace("|", "\\|")


def _values(name: str, documented: type) -> str:
    """Return a name that a class's module gives to a ``Literal`` as that; other names as they are."""
    first, *rest = name.split(".")
    for module in (sys.modules[each.__module__] for each in documented.__mro__):
        found = reduce(lambda holder, part: getattr(holder, part, None), rest, getattr(module, first, None))
        if get_origin(found) is Literal:
            return str(found).removeprefix("typing.")
    return name


def _default(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


if __name__ == "__main__":
    sys.exit(main())
