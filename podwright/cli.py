"""The command line: each command is a module with ``add_arguments`` and ``run``.

``podwright check`` starts in a quarter of a second: a command's module is imported only when the command runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from podwright.checkout import INSTALLED, TRAINING
from podwright.errors import PodwrightError
from podwright.streams import report_os_error, set_up_streams
from podwright_common.command_line import Parser, add_version, unknown_command
from podwright_common.exit_status import FAILED, INTERRUPTED, OK
from podwright_common.garbage import skip_last_collections
from podwright_common.terminal import printable, whole_lines

GROUPS = {"nodes"}  # commands that have commands of their own: alone, they show their help
COMPLETION_VARIABLE = "_ARGCOMPLETE"  # the scripts of `podwright completion` set it when a user presses Tab
ENTRY_POINTS = "podwright.commands"  # the entry point group of commands that other distributions bring
WHOLE_LINE_COMMANDS = {"completion", "export", "logs", "policy", "schema", "ssh-proxy"}  # programs read their output
MISSING_DISTRIBUTIONS = {  # messages by package
    "podwright_training": "podwright-training is not installed: install its wheel (plans need no torch: `pip install "
    "--no-deps` is enough), or use the checkout",
    "podwright_rehearsal": "podwright-rehearsal is not installed: `pip install 'podwright[rehearsal]'`, with uvx "
    "`--from 'podwright[rehearsal]'`, or use the checkout",
}


class Command(NamedTuple):
    """One word after ``podwright``, and how to import the module that has its ``add_arguments`` and ``run``."""

    name: str
    help: str
    load: Callable[[], ModuleType]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        self.load().add_arguments(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Run the command, and return its exit status."""
        status: int = self.load().run(options)
        return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _set_up()
    if arguments is None:
        skip_last_collections()
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
        if error.name not in MISSING_DISTRIBUTIONS:
            raise
        print(f"podwright: {MISSING_DISTRIBUTIONS[error.name]}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return report_os_error(error)
    return status


def _set_up() -> None:
    """Prepare the streams and the imports, and answer a shell that asks what Tab offers."""
    set_up_streams()
    gc.set_threshold(50_000)  # imports make no garbage, and looking for it takes a tenth of a check
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins takes 10 ms
    if INSTALLED:  # last, so that an installed podwright-training comes first
        sys.path.append(str(TRAINING))
    if COMPLETION_VARIABLE in os.environ:
        from podwright.operations.completion import answer

        answer(_parser)


def _run(arguments: list[str]) -> int:
    """Run the command that the arguments name, and return its exit status."""
    parser = _parser(arguments)
    if not arguments:
        parser.print_help()
        return OK
    if len(arguments) == 1 and arguments[0] in GROUPS:
        arguments = [*arguments, "--help"]
    if not arguments[0].startswith("-"):
        _require_command(arguments[0], parser)
    options = parser.parse_whole(arguments)
    prints_whole_lines = arguments[0] in WHOLE_LINE_COMMANDS or getattr(options, "json", False)
    with whole_lines() if prints_whole_lines else nullcontext():
        status: int = options.command(options)
    return status


def _parser(arguments: Sequence[str]) -> Parser:
    """Build the parser; only commands named in the arguments add theirs."""
    parser = Parser(
        prog="podwright",
        description="Deploy a SageMaker HyperPod Slurm cluster and train on it, from one YAML file.",
    )
    add_version(parser, _version)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in all_commands():
        subparser = subparsers.add_parser(
            command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
        )
        subparser.set_defaults(command=command.run)
        if command.name in arguments:
            command.add_arguments(subparser)
    return parser


def _version() -> str:
    from importlib.metadata import version

    return version("podwright")


def _require_command(name: str, parser: argparse.ArgumentParser) -> None:
    """End with the closest command if ``name`` is not a command."""
    commands = [command.name for command in all_commands()]
    if name not in commands:
        parser.error(unknown_command(name, commands))


def all_commands() -> Sequence[Command]:
    """Return all commands, in the order of ``--help``."""
    return (
        _operation("settings_file.init", "write a first cluster.yaml: from answers, flags, or an example"),
        _operation("settings_file.check", "report all problems of a settings file"),
        _operation("settings_file.explain", "describe a key, a finding's code, or a file's cluster"),
        _operation("settings_file.schema", "print the JSON Schema of cluster.yaml, or of a command's JSON"),
        _operation("plan", "estimate memory, speed, days and dollars of a training run"),
        _operation("capacity.capacity", "find training plans to buy, with price, move and the time of a run"),
        _operation("deployment.setup", "find Terraform, Node and cdktf's command, and download missing ones"),
        _operation("deployment.bundle", "download programs and packages for nodes without internet"),
        _operation("deployment.outputs", "show ids, names and next commands of the deployed stacks"),
        _operation("deployment.align", "prepare Terraform's state for an update of instance groups"),
        _operation("deployment.adopt", "import resources of a killed deployment into Terraform"),
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
        _operation("collection.collect", "describe a cluster's nodes and API without private data, to share"),
        _operation("health.drift", "compare AWS with Terraform's state and the settings"),
        _operation("deployment.policy", "print the IAM policy for deploying, or for training"),
        _operation("import_export.export", "write the request of aws sagemaker create-cluster"),
        _operation("deployment.state", "move Terraform's state to an S3 bucket, which it creates, or another backend"),
        _operation("moving.move", "move a cluster with files, people, accounts and jobs to another zone or region"),
        _operation("deployment.destroy", "list deleted and kept resources, destroy, and list what still costs money"),
        _operation("deployment.teardown", "list resources that still cost money, in the order to delete them"),
        _operation("completion", "print the script that completes commands in bash, zsh or fish"),
        _extension("rehearse", "deploy, train, lose a host and destroy on this machine", package="podwright_rehearsal"),
    )


def _operation(module_name: str, help_: str, *, name: str = "") -> Command:
    """Return the command of a module of ``podwright.operations``."""
    return Command(
        name or module_name.rpartition(".")[2].replace("_", "-"),
        help_,
        lambda: import_module(f"podwright.operations.{module_name}"),
    )


def _extension(name: str, help_: str, *, package: str) -> Command:
    """Return a command that another distribution declares as an entry point, so that podwright never imports it."""

    def load() -> ModuleType:
        from importlib.metadata import entry_points

        for entry_point in entry_points(group=ENTRY_POINTS, name=name):
            module: ModuleType = entry_point.load()
            return module
        raise ModuleNotFoundError(name=package)

    return Command(name, help_, load)


if __name__ == "__main__":
    raise SystemExit(main())
