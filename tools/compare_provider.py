"""Compare the bindings with a newer provider's: every argument, block and attribute has to be there, too.

An argument that the newer one requires and ours do not have is reported as well.

python tools/compare_provider.py cdktn_provider_aws-25.8.1-py3-none-any.whl

The prebuilt bindings say in their METADATA which version of the provider they were made from. `pip download --no-deps
cdktn-provider-aws==25.8.1` gets CDK Terrain's of hashicorp/aws 6.69.1; cdktf's, `cdktf-cdktf-provider-aws==21.22.1`,
end with 6.25.0.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

BINDINGS = Path(__file__).parents[1] / "constructs" / "podwright_constructs" / "aws"
PACKAGES = ("cdktf_cdktf_provider_aws", "cdktn_provider_aws")
NOT_THEIRS = {"id_", "alias"}  # the construct's id; a provider's alias is our own property

Names = Mapping[str, set[str]]


def main() -> int:
    """Print what the newer provider lacks, and how much was compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="the prebuilt bindings")
    missing, compared = [], 0
    with zipfile.ZipFile(parser.parse_args().wheel) as wheel:
        (package,) = {name.partition("/")[0] for name in wheel.namelist()} & {*PACKAGES}
        modules = [path for path in sorted(BINDINGS.glob("*.py")) if path.stem != "__init__"]
        for path in modules:
            source = wheel.read(f"{package}/{_their_name(path.stem)}/__init__.py").decode()
            theirs, required = dict(_classes(source)), dict(_required(source))
            for name, words in _classes(path.read_text(encoding="utf-8")):
                missing += [f"{path.stem}: {name} needs {word}" for word in sorted(_of(name, required) - words)]
                missing += [f"{path.stem}: {name}.{word}" for word in sorted(words - _of(name, theirs) - NOT_THEIRS)]
                compared += len(words)
    print("\n".join([*missing, f"{len(modules)} modules, {compared} names, {len(missing)} missing"]))
    return 1 if missing else 0


def _classes(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each class of a module with its arguments, keys and attributes."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            arguments = {
                argument.arg
                for function in functions
                if function.name == "__init__"
                for argument in (*function.args.args[1:], *function.args.kwonlyargs)
            }
            keys = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            attributes = {function.name for function in functions if not function.name.startswith("_")}
            yield node.name, (arguments - {"scope"}) | keys | attributes


def _required(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each class of a module with the arguments that have no default."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            makers = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
            arguments = (
                pair for maker in makers for pair in zip(maker.args.kwonlyargs, maker.args.kw_defaults, strict=True)
            )
            yield node.name, {argument.arg for argument, default in arguments if default is None}


def _their_name(module: str) -> str:
    return re.sub("^data_", "data_aws_", module)


def _of(name: str, theirs: Names) -> set[str]:
    """Return the names of their class; jsii adds AWS to data sources, and an A where two names would be one."""
    spelt = (name, f"{name}A", re.sub("^Data", "DataAws", name))
    return next((theirs[each] for each in spelt if each in theirs), set())


if __name__ == "__main__":
    sys.exit(main())
