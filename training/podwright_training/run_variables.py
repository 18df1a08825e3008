"""Environment variables of a run: plain ones, and secrets, each in a file that only its user can read.

A secret is read by the process that needs it, on its node. Configuration, scripts, arguments and logs have only the
file's path. AWS Secrets Manager is not asked: a job would need the node's role, which users of a cluster may not use.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from podwright_common.file_owner import user_name
from podwright_common.regular_file import open_regular
from podwright_training.errors import UserError, report
from podwright_training.private_folder import OTHERS

LONGEST_BYTES = 64 << 10  # Linux passes no longer variable than 128 KiB to a program.
SECRETS_TEXT = "Files that contain the values of secret environment variables, by variable; only you may read them."
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})  # Bash ends at an assignment
SECRET_VARIABLE = re.compile(
    r"(?i)PASSWORD$|PASSWD$|API_?KEY$|(?:ACCESS|PRIVATE|WANDB|OPENAI|ANTHROPIC|SECRET)_?KEY$|(?:^|_)(?:PASS|PAT|PWD)$"
    r"|SECRET$|TOKEN$"
)
PLAIN_VARIABLE = re.compile(r"(?i)(?:^|_)(?:PAD|EOS|BOS|MASK|UNK|CLS|SEP|START|END|STOP|IMAGE)_TOKEN$|^(?:OLD)?PWD$")
SWITCHES = {"", "0", "1", "false", "true"}  # values that are no secrets
# The forms that issuers document; podwright/check/secrets.py has more of them, which nodes do not have.
SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{20}|xox[abeoprs]-[\w-]{10}"
    r"|sk-[\w-]{20}|(?:AKIA|ASIA)[A-Z0-9]{16}\b)|-----BEGIN [A-Z ]*PRIVATE KEY|://[^\s/:@]+:[^\s/@]+@"
)
SECRET_FILE = re.compile(r"(?:/|~/)[^:,]+")  # Slurm's containers mount it as SOURCE:TARGET,…
# Read when a program starts, before it knows the run's options.
OF_START = re.compile(r"LD_.+|PYTHON.+|PATH|HOME|USER")
OF_SHELL = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})")  # Only a shell would expand it.
# Set for each rank by the program that starts it.
OF_RANK = re.compile(
    r"(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|(?:SLURM|TORCHELASTIC)_.+"
)


def problems_of_env(env: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with plain variables that ranks set for themselves, one line each."""
    for name in env:
        if not VARIABLE.fullmatch(name):
            yield f"env: {'the secret' if SECRET_VALUE.search(name) else repr(name)} is not a variable name"
        elif OF_RANK.fullmatch(name):
            yield f"env: {name} is set for each rank by the program that starts it; leave it out"
        elif OF_START.fullmatch(name):
            yield f"env: {name} is read before a rank knows its options; export it where you start the run"
    yield from problems_of_values(env)


def problems_of_values(env: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the values of plain variables, one line each; it does not repeat them."""
    for name, value in env.items():
        if OF_SHELL.search(value):
            yield f"env: {_shown(name)}: $NAME is not expanded; write the text that it stands for"
    yield from problems_of_open_secrets(env)


def problems_of_open_secrets(env: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each plain variable that has a secret's name or value; it does not repeat the value."""
    for name, value in env.items():
        has_secret_name = SECRET_VARIABLE.search(name) and not PLAIN_VARIABLE.search(name)
        has_value = value.lower() not in SWITCHES
        if (has_value and has_secret_name) or SECRET_VALUE.search(name) or SECRET_VALUE.search(value):
            yield (
                f"env: {_shown(name)} looks like a secret, and others can read a run's configuration: write its value "
                f"into a file that only you can read, and name the file in `secrets: {{{_shown(name)}: /fsx/…}}`"
            )


def _shown(name: str) -> str:
    """Return a variable's name for a message, or a placeholder where a user may have written the secret itself."""
    return name if name.isupper() and not SECRET_VALUE.search(name) else "VARIABLE"


def problems_of_secrets(secrets: Mapping[str, str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the names and paths of secrets, one line each; it does not open the files.

    A value that is no path may be the secret itself, which is not repeated.
    """
    for name, path in secrets.items():
        if not VARIABLE.fullmatch(name):
            yield "secrets: need `VARIABLE: /path/of/a/file` lines"
        elif name in READ_ONLY:
            yield f"secrets: {name} is Bash's own, which cannot be set"
        elif OF_RANK.fullmatch(name) or OF_START.fullmatch(name):
            yield f"secrets: {name} is no secret; leave it out"
        elif path.startswith("arn:"):
            yield (
                f"secrets: {_shown(name)}: got an ARN, need a file: jobs may not use the node's role. Write the "
                f"file once: (umask 077; aws secretsmanager get-secret-value --secret-id {path} --query SecretString "
                "--output text > FILE)"
            )
        elif not SECRET_FILE.fullmatch(path) or not path.isprintable():
            yield (
                f"secrets: {_shown(name)}: need the path of a file that contains the secret, beginning with / or ~/ "
                "and without : and , (never the secret itself)"
            )
        if name in env:
            yield f"secrets: {name} is in env, too; keep one of the two"


def problems_of_files(secrets: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the files of secrets, one line each."""
    for name, path in secrets.items():
        try:
            read_secret(name, path)
        except UserError as error:
            yield str(error)


def read_secret(name: str, path: str) -> str:
    """Return the secret in a file, without the end of its only line.

    Args:
        name: of the variable, for messages.
        path: of the file; ``~`` is the home of this process's user.

    Raises:
        UserError: There is no such file, others may read it, or it is not one line of text.
    """
    file = Path(path).expanduser()
    place = f"secrets: {name}: {file}"
    try:
        with open_regular(file, follow_links=True) as opened:
            status = os.fstat(opened.fileno())
            content = opened.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{place}: {error.strerror}; need a file of your own with the secret") from error
    if status.st_uid != os.geteuid():
        raise UserError(f"{place} belongs to {user_name(status.st_uid)}, need a file of your own")
    if status.st_mode & OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise UserError(f"{place}: got mode {mode:o}, with which others may use it; chmod 600 {shlex.quote(str(file))}")
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        text = "\0"
    if not text.strip():
        raise UserError(f"{place} is empty, need the secret in it")
    if text != text.strip():
        raise UserError(f"{place} has a blank before or after the secret; delete the blank")
    if len(content) > LONGEST_BYTES or not text.isprintable():
        raise UserError(f"{place}: need one line of text, at most {LONGEST_BYTES >> 10} KiB, and nothing else")
    return text


def read_variables(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a run.

    Raises:
        UserError: With a line for each secret that cannot be read.
    """
    if problems := list(problems_of_files(secrets)):
        raise UserError("\n".join(problems))
    return {**env, **{name: read_secret(name, path) for name, path in secrets.items()}}


@contextmanager
def variables_in_use(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process, or remove those that are None, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def add_secrets_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--secrets`` to a command that may ask the Hugging Face hub."""
    parser.add_argument(
        "--secrets",
        default="",
        metavar="TEXT",
        help="variables whose value is in a file that only you can read, as 'HF_TOKEN=/fsx/home/ada/.hf_token'. "
        "Default: those of --run-dir, if the command has it",
    )


def secrets_in(text: str) -> dict[str, str]:
    """Return the files of secrets in ``VARIABLE=FILE …``, by variable.

    Raises:
        UserError: The text has another form; the message does not repeat it.
    """
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"secrets: {error}; quotes of a shell go in pairs") from error
    secrets = {name if equals else "": path for name, equals, path in pairs}
    if twice := sorted(name for name, count in Counter(name for name, _, _ in pairs).items() if count > 1):
        raise UserError(f"secrets: {_shown(twice[0])} is given twice; keep one of them")
    if problems := list(problems_of_secrets(secrets, {})):
        raise UserError("\n".join(problems))
    return secrets


def variables_of_run(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a run that this process lacks, for commands that read a run which has started.

    A secret that cannot be read is a warning: the run may be somebody else's, or be on another machine.
    """
    variables = dict(env)
    for name, path in secrets.items():
        if name in os.environ:
            continue
        try:
            variables[name] = read_secret(name, path)
        except UserError as error:
            report(UserError(f"{error}; continuing without {name}"), level="warning")
    return {name: value for name, value in variables.items() if name not in os.environ}


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
