"""The command line. A command is one function and, beside it, the arguments it takes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from textwrap import indent
from typing import TypeAlias

from podwright.check import findings
from podwright.check import load as loading
from podwright.check.explain import keys
from podwright.check.report import check, check_live, codes
from podwright.deploy import outputs
from podwright.deploy.deployed import NotDeployedError
from podwright.deploy.terraform import TerraformError
from podwright.planning.arguments import add_arguments as add_plan_arguments
from podwright_training.config.sources import load_file
from podwright_training.errors import ConfigError as RunConfigError

OK, FAILED, UNREADABLE, INTERRUPTED = 0, 1, 2, 130
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 — argparse has no public name for it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a source line may hold what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser().parse_args(arguments)
        status: int = options.command(options)
        sys.stdout.flush()
    except (findings.UnreadableFileError, RunConfigError) as error:
        print(f"podwright: {error}", file=sys.stderr)
        return UNREADABLE
    except findings.ConfigError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `podwright explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="podwright", description="One YAML file in, a cluster and a trained model out."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_check, _add_explain, _add_plan, _add_bundle, _add_outputs, _add_adopt, _add_rehearse):
        add(commands)
    return parser


# ---- check -------------------------------------------------------------------------------------


def _add_check(commands: Subparsers) -> None:
    parser = commands.add_parser("check", help="say everything that is wrong with a settings file")
    _add_file(parser)
    parser.add_argument("--json", action="store_true", help="findings for machines")
    parser.add_argument("--run", type=Path, metavar="run.yaml", help="say whether this run fits the cluster, too")
    parser.add_argument("--live", action="store_true", help="ask your AWS account, too: quotas, zones, what you bring")
    parser.add_argument("--strict", action="store_true", help="a warning is a failure too")
    parser.set_defaults(command=_check)


def _check(options: argparse.Namespace) -> int:
    report = check(options.file, load_file(options.run) if options.run else None)
    if options.live:
        report = check_live(report)
    failing = {findings.Level.ERROR, findings.Level.WARNING} if options.strict else {findings.Level.ERROR}
    status = FAILED if any(finding.level in failing for finding in report.findings) else OK
    if options.json:
        print(findings.to_json(report.findings))
        return status
    findings.write(report.findings, file=options.file, text=report.document.text, stream=sys.stdout)
    print(f"{options.file}: {findings.summary(report.findings) or 'no problems'}")
    return status


# ---- explain -----------------------------------------------------------------------------------


def _add_explain(commands: Subparsers) -> None:
    parser = commands.add_parser("explain", help="what a key or a finding's code means, or what a file's cluster is")
    parser.add_argument(
        "key", nargs="?", metavar="KEY|FILE", help="such as lustre.capacity_gib, vpc-dns or cluster.yaml"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="NAME.svg", help="draw a file's cluster as .svg, .html or .md"
    )
    parser.set_defaults(command=_explain)


def _explain(options: argparse.Namespace) -> int:
    if options.output or (options.key and _is_file(options.key)):
        return _draw(Path(options.key or loading.config_path()), options.output)
    meanings = codes()
    if options.key in meanings:
        print(f"{options.key}\n{indent(meanings[options.key], '    ')}")
        return OK
    everything = list(keys())
    wanted = [key for key in everything if options.key is None or _is_at(key.name, options.key)]
    for key in wanted:
        print(key)
    if wanted:
        return OK
    similar = get_close_matches(options.key, [*(key.name for key in everything), *meanings], n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "`podwright explain` lists all keys"
    print(f"podwright: no key or code {options.key!r}: {hint}", file=sys.stderr)
    return UNREADABLE


def _is_file(word: str) -> bool:
    """No key has such an end; ``network`` may be a folder, too, and is a key."""
    return Path(word).suffix in {".yaml", ".yml"} or Path(word).is_file()


def _draw(file: Path, output: Path | None) -> int:
    settings = loading.load(file)
    for warning in ("DEPRECATED", "END_OF_LIFE"):  # cdktf's Node prints a banner about its age otherwise
        os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")
    from podwright.diagram import command  # noqa: PLC0415 — the planner's prices
    from podwright_stacks.app import synthesize  # noqa: PLC0415 — cdktf starts Node

    try:
        print(command.draw(settings, output, synthesize))
    except command.DrawingError as error:
        print(f"podwright: {error}", file=sys.stderr)
        return FAILED
    return OK


def _is_at(name: str, wanted: str) -> bool:
    """Whether a key is the wanted one or below it; ``[]`` and ``[3]`` need not be written."""
    plain = name.replace("[]", "")
    wanted = "".join(part.split("]")[-1] for part in wanted.split("["))
    return plain == wanted or plain.startswith(f"{wanted}.")


# ---- plan --------------------------------------------------------------------------------------


def _add_plan(commands: Subparsers) -> None:
    parser = commands.add_parser("plan", help="memory, speed, days and dollars before the first node starts")
    add_plan_arguments(parser)
    parser.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    from podwright.planning import command  # noqa: PLC0415 — the planner's tables take longer to load than a check takes

    return command.run(options)


# ---- bundle ------------------------------------------------------------------------------------


def _add_bundle(commands: Subparsers) -> None:
    parser = commands.add_parser("bundle", help="all that nodes would get from the internet, for those without")
    _add_file(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to make it; default: .cache/bundle")
    parser.add_argument("--upload", action="store_true", help="put it into the cluster's bucket, where nodes look")
    parser.add_argument("--python", default="3.10", metavar="X.Y", help="the nodes' Python; default: %(default)s")
    parser.set_defaults(command=_bundle)


def _bundle(options: argparse.Namespace) -> int:
    from podwright.deploy import bundle  # noqa: PLC0415 — boto3

    try:
        bundle.run(loading.load(options.file), options.output, python=options.python, upload=options.upload)
    except (bundle.BundleError, NotDeployedError, TerraformError) as error:
        print(f"podwright: {error}", file=sys.stderr)
        return FAILED
    return OK


# ---- outputs -----------------------------------------------------------------------------------


def _add_outputs(commands: Subparsers) -> None:
    parser = commands.add_parser("outputs", help="ids, names and next commands of what is deployed from this folder")
    _add_file(parser)
    parser.add_argument("--json", action="store_true", help="outputs for machines")
    parser.set_defaults(command=_outputs)


def _outputs(options: argparse.Namespace) -> int:
    try:
        found = outputs.outputs(loading.load(options.file).name, folder=Path.cwd())
    except (NotDeployedError, TerraformError) as error:
        print(f"podwright: {error}", file=sys.stderr)
        return FAILED
    print(json.dumps(found, indent=2, sort_keys=True) if options.json else outputs.in_lines(found))
    return OK


# ---- adopt -------------------------------------------------------------------------------------


def _add_adopt(commands: Subparsers) -> None:
    parser = commands.add_parser("adopt", help="find what a killed deployment left in AWS, and give it to Terraform")
    _add_file(parser)
    parser.add_argument("--apply", action="store_true", help="change Terraform's state; without it, only say what is")
    parser.set_defaults(command=_adopt)


def _adopt(options: argparse.Namespace) -> int:
    from podwright.check.unanswered import UnansweredError  # noqa: PLC0415
    from podwright.deploy import adopt  # noqa: PLC0415 — boto3

    try:
        left = adopt.adopt(loading.load(options.file), folder=Path.cwd(), apply=options.apply)
    except (NotDeployedError, TerraformError, UnansweredError) as error:
        hint = f": {error.hint}" if isinstance(error, UnansweredError) else ""
        print(f"podwright: {error}{hint}", file=sys.stderr)
        return FAILED
    if left and not options.apply:
        print(f"{left} in AWS that no state knows: adopt with --apply, which changes nothing in AWS")
    return FAILED if left else OK


# ---- rehearse ----------------------------------------------------------------------------------


def _add_rehearse(commands: Subparsers) -> None:
    parser = commands.add_parser("rehearse", help="do everything on this machine: deploy, train, lose a host, destroy")
    _add_file(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for machines")
    parser.add_argument("--keep", action="store_true", help="stay up instead of destroying, until Ctrl-C")
    parser.add_argument("--flat", action="store_true", help="hosts that are plain processes: no root needed")
    parser.add_argument(
        "--compute-nodes",
        type=_count,
        metavar="N",
        help="so many nodes in the first compute group, instead of its count",
    )
    parser.add_argument("--clean", action="store_true", help="end what an earlier rehearsal left, and say what it was")
    parser.set_defaults(command=_rehearse)


def _count(text: str) -> int:
    """A number from 1; argparse tells the user what it is for."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: a rehearsal needs at least one compute node")
    return number


def _rehearse(options: argparse.Namespace) -> int:
    from podwright_rehearsal import command  # noqa: PLC0415 — boto3 and moto take longer to load than a check takes

    if options.clean:
        return command.clean()
    return command.rehearse(
        options.file,
        as_json=options.json,
        keep=options.keep,
        flat=options.flat,
        compute_nodes=options.compute_nodes,
    )


# ---- for every command -------------------------------------------------------------------------


def _add_file(parser: argparse.ArgumentParser) -> None:
    """The settings file as the first argument."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=loading.config_path(),
        metavar="FILE",
        help=f"default: ${loading.CONFIG_VARIABLE}, else {loading.DEFAULT_CONFIG}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
