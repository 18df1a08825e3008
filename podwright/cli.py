"""The command line. A command is one function and, beside it, the arguments it takes.

``podwright check`` starts in a quarter of a second: each command imports its own modules only when it runs.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple

from podwright.checkout import INSTALLED, TRAINING
from podwright.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG, add_file, config_path
from podwright.errors import PodwrightError
from podwright.parser import Parser, add_examples
from podwright.terminal import fit_terminals, printable, whole_lines

if TYPE_CHECKING:
    from podwright.check.explain import Key

OK, FAILED, UNREADABLE, OUT_OF_REACH, INTERRUPTED, UNREAD = 0, 1, 2, 3, 130, 141
PLAIN = "podwright.plain"  # how streams write what their encoding lacks
PLAIN_BARS = {
    "█": "#",
    "▓": "=",
    "▒": "-",
    "░": ".",
    "▚": "%",
    "▞": "/",
    "▤": "+",
    "▥": ":",
    "▧": ";",
    "▨": "~",
    "·": "_",
}
DEFAULT_HOSTS = "debian-13"
SHELL = "shell"  # `podwright rehearse shell`
GROUPS = {"nodes"}  # commands that have commands of their own: alone, they show their help
ASKED_BY_SHELL = "_ARGCOMPLETE"  # the variable with which the scripts of `podwright completion` ask what Tab offers
WHOLE = {"completion", "export", "logs", "policy", "schema", "ssh-proxy"}  # programs read it, or print it
STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}  # any command may meet them, and the user solves them
MISSING = {  # by package
    "podwright_training": "podwright-training is not installed: install its wheel (plans need no torch: `pip install "
    "--no-deps` is enough), or use the checkout",
    "podwright_rehearsal": "podwright-rehearsal is not installed: `pip install 'podwright[rehearsal]'`, with uvx "
    "`--from 'podwright[rehearsal]'`, or use the checkout",
}


class Command(NamedTuple):
    """One word after ``podwright``."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _set_up()
    try:
        try:
            status = _run(list(sys.argv[1:] if arguments is None else arguments))
        except SystemExit:  # argparse's, after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except PodwrightError as error:
        print(printable(error.render()), file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        if error.name not in MISSING:
            raise
        print(f"podwright: {MISSING[error.name]}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _unwritten(error)
    return status


def _run(arguments: list[str]) -> int:
    """Run the command that the arguments name, and return its exit status."""
    parser = _parser(arguments)
    if not arguments:
        parser.print_help()
        return OK
    if len(arguments) == 1 and arguments[0] in GROUPS:
        arguments = [*arguments, "--help"]
    if not arguments[0].startswith("-"):
        _require_known(arguments[0], parser)
    options = parser.parse_whole(arguments)
    with whole_lines() if arguments[0] in WHOLE or getattr(options, "json", False) else nullcontext():
        status: int = options.command(options)
    return status


def _unwritten(error: OSError) -> int:
    """Return the status of a command that could not read or write a file; raise errors that name none."""
    if not isinstance(error, BrokenPipeError) and error.errno not in STORAGE and error.filename is None:
        raise error
    try:
        sys.stdout.flush()
    except OSError:  # Python would try once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # `podwright explain | head`
        return UNREAD
    print(printable(f"podwright: {error.filename or 'cannot write'}: {error.strerror}"), file=sys.stderr)
    return FAILED


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """Return replacements for characters that the terminal's encoding lacks: letters for bars, codes for others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(PLAIN_BARS.get(it) or it.encode("ascii", "backslashreplace").decode() for it in unknown), error.end


def _set_up() -> None:
    """Prepare the streams and the imports, and answer a shell that asks what Tab offers."""
    codecs.register_error(PLAIN, _in_plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `podwright check >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 -- to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a source line may hold what the terminal's encoding lacks
            stream.reconfigure(errors=PLAIN)
    fit_terminals()
    gc.set_threshold(50_000)  # imports make no garbage, and looking for it takes a tenth of a check
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins takes 10 ms
    if INSTALLED:  # last, so that an installed podwright-training comes first
        sys.path.append(str(TRAINING))
    if ASKED_BY_SHELL in os.environ:
        from podwright.operations.completion import answer

        answer(_parser)


def _parser(arguments: Sequence[str]) -> Parser:
    """Build the parser; only commands named in the arguments add theirs."""
    parser = Parser(
        prog="podwright",
        description="Deploy a SageMaker HyperPod Slurm cluster and train on it, from one YAML file.",
    )
    parser.add_argument("--version", action=_Version)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in all_commands():
        subparser = subparsers.add_parser(
            command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
        )
        subparser.set_defaults(command=command.run)
        if command.name in arguments:
            command.add_arguments(subparser)
    return parser


class _Version(argparse.Action):
    """Print the version, which is looked up when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"{parser.prog} {version('podwright')}")
        parser.exit()


def _require_known(name: str, parser: argparse.ArgumentParser) -> None:
    """End with the closest command if ``name`` is not a command."""
    commands = [command.name for command in all_commands()]
    if name not in commands:
        close = get_close_matches(name, commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(commands)}"
        parser.error(f"unknown command {name}; {hint}")


def all_commands() -> Sequence[Command]:
    """Return all commands, in the order of ``--help``."""
    return (
        _operation("first_file.init", "write a first cluster.yaml: from answers, flags, or an example"),
        Command("check", "report all problems of a settings file", _check_arguments, _check),
        Command("explain", "describe a key, a finding's code, or a file's cluster", _explain_arguments, _explain),
        _operation("first_file.schema", "print the JSON Schema of cluster.yaml, or of a command's JSON"),
        Command("plan", "estimate memory, speed, days and dollars of a training run", _plan_arguments, _plan),
        _operation("deployment.setup", "find Terraform, Node and cdktf's command, and download missing ones"),
        Command("bundle", "download programs and packages for nodes without internet", _bundle_arguments, _bundle),
        Command("outputs", "show ids, names and next commands of the deployed stacks", _outputs_arguments, _outputs),
        Command("align", "prepare Terraform's state for an update of instance groups", _align_arguments, _align),
        Command("adopt", "import resources of a killed deployment into Terraform", _adopt_arguments, _adopt),
        _operation(
            "import_export.import_cluster",
            "write cluster.yaml and state for a cluster that podwright did not make",
            name="import",
        ),
        _operation("deployment.deploy", "show price and changes, deploy, and follow the nodes' boots"),
        _operation("health.status", "show state, nodes, file systems, cost and failures of a running cluster"),
        _operation("nodes.scale", "set the number of nodes of an instance group"),
        _operation("nodes.update_software", "show image versions, and install SageMaker's newest image on nodes"),
        _operation("nodes.nodes", "list, add, replace, reboot, delete, drain and undrain nodes"),
        _operation("access.connect", "open a shell on a node"),
        _operation("access.ssh_config", "let ssh, scp and rsync reach the nodes by name"),
        _operation("access.forward", "forward a port of a node to this machine"),
        _operation("jobs.submit", "send a run's folder to the cluster and submit its job"),
        _operation("jobs.jobs", "list Slurm's jobs"),
        _operation("jobs.logs", "show the output of a job, of lifecycle scripts or of Slurm"),
        _operation("jobs.cancel", "cancel Slurm's jobs"),
        _operation("jobs.fetch", "copy a run's report, metrics, log and model to this machine"),
        _operation("access.ssh_proxy", "reach a node's sshd; ssh's ProxyCommand runs it"),
        _operation("validation.validate", "measure nodes, network and shared file system, and name slow ones"),
        _operation("health.doctor", "report problems of a cluster, its account, scripts and role"),
        _operation("health.drift", "compare AWS with Terraform's state and the settings"),
        _operation("deployment.policy", "print the IAM policy for deploying"),
        _operation("import_export.export", "write the request of aws sagemaker create-cluster"),
        _operation("deployment.state", "move Terraform's state to an S3 bucket, and create the bucket"),
        _operation("moving.move", "move a cluster with files, people, accounts and jobs to another zone or region"),
        _operation("deployment.destroy", "list deleted and kept resources, destroy, and list what still costs money"),
        _operation("deployment.teardown", "list resources that still cost money, in the order to delete them"),
        _operation("completion", "print the script that completes commands in bash, zsh or fish"),
        Command("rehearse", "deploy, train, lose a host and destroy on this machine", _rehearse_arguments, _rehearse),
    )


def _operation(module_name: str, help_: str, *, name: str = "") -> Command:
    """Return the command of a module of ``podwright.operations``, which has ``add_arguments`` and ``run``."""
    module = f"podwright.operations.{module_name}"
    return Command(
        name or module_name.rpartition(".")[2].replace("_", "-"),
        help_,
        lambda parser: import_module(module).add_arguments(parser),
        lambda options: import_module(module).run(options),
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _print_json(command: str, document: Mapping[str, Any]) -> None:
    from podwright.operations.output import print_json

    print_json(f"podwright.{command}/1", document)


# ---- check -------------------------------------------------------------------------------------


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    parser.add_argument(
        "--run", type=Path, metavar="FILE", help="also check whether this run.yaml or job.yaml fits the cluster"
    )
    parser.add_argument(
        "--live", action="store_true", help="also ask your AWS account: quotas, zones, existing resources"
    )
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    add_examples(parser, "podwright check", "podwright check --live --strict", "podwright check --run run.yaml --json")


def _check(options: argparse.Namespace) -> int:
    from podwright.check.errors import InputError
    from podwright.check.findings import Level, summary, to_json, write
    from podwright.check.load import load_run_or_job
    from podwright.check.report import check, check_live
    from podwright.check.rules import UNANSWERED

    try:
        report = check(options.file, load_run_or_job(options.run) if options.run else None)
    except InputError as error:
        if not options.json:
            raise
        print(to_json([error.finding()]))
        return error.exit_status
    if options.live:
        report = check_live(report)
    failing = {Level.ERROR, Level.WARNING} if options.strict else {Level.ERROR}
    wrong = [finding for finding in report.findings if finding.level in failing]
    status = FAILED if any(finding.code != UNANSWERED for finding in wrong) else OUT_OF_REACH if wrong else OK
    if options.json:
        print(to_json(report.findings))
        return status
    write(report.findings, file=options.file, text=report.document.shown, stream=sys.stdout)
    print(f"{options.file}: {summary(report.findings) or 'no problems'}")
    return status


# ---- explain -----------------------------------------------------------------------------------


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key",
        nargs="?",
        metavar="WORD",
        help="a key such as lustre.capacity_gib or max_steps, a finding's code such as vpc-dns, or a file to draw. "
        "Default: list all keys of cluster.yaml",
    )
    parser.add_argument("--codes", action="store_true", help="list the codes of findings")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", action="store_true", help="explain keys of run.yaml instead of cluster.yaml")
    which.add_argument("--job", action="store_true", help="explain keys of job.yaml instead of cluster.yaml")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="NAME.svg",
        help="draw the file's cluster as .svg, .narrow.svg (400 px wide), .html, .md or .mmd (Mermaid)",
    )  # fmt: skip
    _add_json(parser)
    add_examples(
        parser,
        "podwright explain lustre.capacity_gib",
        "podwright explain max_steps",
        "podwright explain --job resume",
        "podwright explain vpc-dns",
        "podwright explain cluster.yaml -o cluster.svg",
    )


def _explain(options: argparse.Namespace) -> int:
    from podwright.check.explain import job_keys, keys, run_keys
    from podwright.check.report import codes

    if options.output or (options.key and _is_file(options.key)):
        return _draw(Path(options.key or config_path()), options.output, as_json=options.json)
    meanings = codes()
    if options.codes or options.key in meanings:
        return _print_codes(meanings if options.codes else {options.key: meanings[options.key]}, options)
    files = (run_keys,) if options.run else (job_keys,) if options.job else (keys, run_keys, job_keys)
    wanted = list(files[0]()) if options.key is None else _keys_named(options.key, files)
    if not wanted:
        return _unexplained(options.key, [*(key.name for listed in files for key in listed()), *meanings])
    if options.json:
        _print_json("explain", {"keys": [vars(key) for key in wanted]})
    else:
        print(*wanted, sep="\n")
    return OK


def _keys_named(word: str, files: Iterable[Callable[[], Iterator[Key]]]) -> list[Key]:
    """Return the keys that a word names in the first of the files that has one."""
    from podwright.check.explain import matching

    return next((found for listed in files if (found := matching(listed(), word))), [])


def _print_codes(meanings: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print one code's whole meaning, or the first line of each."""
    if options.json:
        _print_json("explain", {"codes": meanings})
    elif options.codes:
        width = max(map(len, meanings))
        print("\n".join(f"{code:{width}}  {meaning.splitlines()[0]}" for code, meaning in sorted(meanings.items())))
    else:
        print(f"{options.key}\n{indent(meanings[options.key], '    ')}")
    return OK


def _unexplained(word: str, names: Iterable[str]) -> int:
    """Name the closest keys and codes."""
    similar = get_close_matches(word, dict.fromkeys(names), n=3)
    listed = "`podwright explain` lists the keys of cluster.yaml, --run run.yaml's, --job job.yaml's, --codes all codes"
    hint = f"did you mean {' or '.join(similar)}?" if similar else listed
    print(f"podwright: no key or code {word!r}: {hint}", file=sys.stderr)
    return UNREADABLE


def _is_file(word: str) -> bool:
    """Return whether a word names a file: no key ends in .yaml, and a folder ``network`` does not hide that key."""
    return Path(word).suffix in {".yaml", ".yml"} or Path(word).is_file()


def _draw(file: Path, output: Path | None, *, as_json: bool) -> int:
    from podwright.check.load import load

    settings = load(file)
    for warning in ("DEPRECATED", "END_OF_LIFE"):  # cdktf's Node prints a banner about its age otherwise
        os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")
    from podwright.diagram import command
    from podwright_stacks.app import synthesize

    drawn = command.draw(settings, output, synthesize)
    if as_json:
        _print_json("explain", {"file": str(file), "written" if output else "cluster": drawn})
    else:
        print(drawn)
    return OK


# ---- plan --------------------------------------------------------------------------------------


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    from podwright.planning.arguments import add_arguments

    add_arguments(parser)
    add_examples(
        parser,
        "podwright plan --model llama3_1_8b --instance ml.p5.48xlarge --nodes 4 --tokens 100B",
        "podwright plan --run run.yaml --instance ml.p5.48xlarge --nodes 4 --search",
    )


def _plan(options: argparse.Namespace) -> int:
    from podwright.planning import command

    return command.run(options)


# ---- bundle ------------------------------------------------------------------------------------


def _bundle_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder to write the bundle to. Default: .cache/bundle"
    )
    parser.add_argument("--upload", action="store_true", help="upload it to the cluster's bucket, for the nodes")
    parser.add_argument("--python", default="3.10", metavar="X.Y", help="Python of the nodes. Default: %(default)s")
    _add_json(parser)
    add_examples(parser, "podwright bundle -o bundle", "podwright bundle --upload")


def _bundle(options: argparse.Namespace) -> int:
    from podwright.check.load import load
    from podwright.deploy import bundle

    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what it prints on the way
        done = bundle.run(load(options.file), options.output, python=options.python, upload=options.upload)
    if options.json:
        _print_json("bundle", done)
    return OK


# ---- outputs -----------------------------------------------------------------------------------


def _outputs_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print outputs as JSON")
    add_examples(parser, "podwright outputs", "podwright outputs --json | jq .")


def _outputs(options: argparse.Namespace) -> int:
    from podwright.check.load import load
    from podwright.deploy import outputs

    found = outputs.outputs(load(options.file).name, folder=Path.cwd())
    print(json.dumps(found, indent=2, sort_keys=True) if options.json else outputs.in_lines(found))
    return OK


# ---- align -------------------------------------------------------------------------------------


def _align_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    _add_json(parser)
    add_examples(parser, "podwright align")


def _align(options: argparse.Namespace) -> int:
    from podwright.check.load import load
    from podwright.deploy import align

    changed = align.align(load(options.file), folder=Path.cwd())
    if options.json:
        _print_json("align", {"changed": changed})
    else:
        print("the state lists the cluster as AWS does now" if changed else "the state lists the cluster as AWS does")
    return OK


# ---- adopt -------------------------------------------------------------------------------------


def _adopt_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument("--apply", action="store_true", help="change Terraform's state. Default: only list")
    _add_json(parser)
    add_examples(parser, "podwright adopt", "podwright adopt --apply")


def _adopt(options: argparse.Namespace) -> int:
    from podwright.check.load import load
    from podwright.deploy import adopt

    outcomes = []
    for outcome in adopt.adopt(load(options.file), folder=Path.cwd(), apply=options.apply):
        outcomes.append(outcome)
        if not options.json:
            print(outcome.text, flush=True)
    left = sum(outcome.is_left for outcome in outcomes)
    if options.json:
        _print_json("adopt", {"applied": options.apply, "orphans": [vars(outcome) for outcome in outcomes]})
    elif left and not options.apply:
        print(f"{left} in AWS that no state lists: adopt with --apply, which does not change AWS")
    return FAILED if left else OK


# ---- rehearse ----------------------------------------------------------------------------------


def _rehearse_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE",
        help=f"settings file; or the word `{SHELL}`, which opens a shell on a node of a rehearsal started with "
        f"--keep. Default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG}, else an example that comes with podwright",
    )  # fmt: skip
    parser.add_argument("node", nargs="?", metavar="NODE", help=f"after {SHELL}: the node. Default: controller")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--keep", action="store_true", help="stay up instead of destroying, until Ctrl-C")
    parser.add_argument(
        "--hosts",
        choices=["debian-13", "debian-12", "flat"],
        help="host type: debian-13 or debian-12 (each host boots systemd on its own Debian root, with Slurm 24.11 or "
        f"22.05; needs root), or flat (plain processes, without root). Default: {DEFAULT_HOSTS}",
    )
    parser.add_argument("--flat", action="store_true", help="the same as --hosts flat")
    parser.add_argument(
        "--compute-nodes",
        type=_count,
        metavar="N",
        help="nodes in the first compute group. Default: its count",
    )
    parser.add_argument("--clean", action="store_true", help="end and list leftovers of an earlier rehearsal")
    add_examples(
        parser,
        "podwright rehearse",
        "podwright rehearse --hosts debian-12 --compute-nodes 4",
        "podwright rehearse --keep",
        "podwright rehearse shell controller",
    )


def _count(text: str) -> int:
    """Parse a number from 1; argparse names the option in its message."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, need a whole number from 1")
    return int(text)


def _rehearse(options: argparse.Namespace) -> int:
    from podwright.operations.errors import ArgumentError
    from podwright_rehearsal import command

    problems = list(_contradictions(options))
    if problems:
        raise ArgumentError("; ".join(problems))
    if options.clean:
        return command.clean()
    if options.file == Path(SHELL):
        return command.shell(options.node or "controller")
    return command.rehearse(
        options.file or command.file_to_rehearse(),
        as_json=options.json,
        keep=options.keep,
        kind="flat" if options.flat else options.hosts or DEFAULT_HOSTS,
        compute_nodes=options.compute_nodes,
    )


def _contradictions(options: argparse.Namespace) -> Iterator[str]:
    """Yield the arguments of ``rehearse`` that do not go together."""
    opens_shell = options.file == Path(SHELL)
    flags = ("json", "keep", "hosts", "flat", "compute_nodes")
    given = [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    if options.flat and options.hosts not in {None, "flat"}:
        yield f"--hosts {options.hosts} and --flat: give one of them"
    if options.clean and (options.file or given):
        yield f"--clean: give it without {', '.join([*([str(options.file)] if options.file else []), *given])}"
    if opens_shell and given:
        yield f"{SHELL}: give it without {', '.join(given)}"
    if options.node and not opens_shell:
        yield f"got {options.node}: name a node after {SHELL} only, as in podwright rehearse {SHELL} NODE"


if __name__ == "__main__":
    raise SystemExit(main())
