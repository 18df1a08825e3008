"""Shared parts of the checks: patterns, names, Terraform references, and lists of choices as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import PurePosixPath

from podwright_constructs import facts
from podwright_constructs.problems import Path, Problem, is_token

LIST_MARK = "#{"  # begins the only item of a list that stands for all items of a list of Terraform's

# Folders of the system and of HyperPod's image; the image's own are below /opt.
_SYSTEM_FOLDERS = tuple(
    PurePosixPath("/", name)
    for name in (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "proc", "root", "run", "sbin"),
        *("snap", "sys", "tmp", "usr", "var"),
        *(
            "opt/amazon",
            "opt/aws",
            "opt/containerd",
            "opt/dlami",
            "opt/ml",
            "opt/nvidia",
            "opt/podwright",
            "opt/sagemaker",
        ),
        "opt/slurm",
    )
)


def name_problems(argument: str, name: str, max_length: int) -> list[Problem]:
    """Check a name of the form that SageMaker gives clusters, groups and partitions."""
    need = f"1 to {max_length} letters, digits and hyphens, no hyphen first or last"
    if len(name) > max_length and not is_reference(name):
        return [Problem("malformed", (argument,), name, need, f"It has {len(name)} characters.")]
    return matches(argument, name, facts.CLUSTER_NAME_PATTERN, need)


def mount_path_problems(mount_path: str, argument: str = "mount_path") -> list[Problem]:
    """Check the path of a mount: absolute, and neither above nor below a folder of the system."""
    hint = "Letters, digits, dots, hyphens and underscores between slashes; no folder called . or .."
    problems = matches(argument, mount_path, facts.MOUNT_PATH_PATTERN, "an absolute path like /fsx", hint)
    if problems or is_reference(mount_path):
        return problems
    path = PurePosixPath(mount_path)
    for folder in _SYSTEM_FOLDERS:
        if path.is_relative_to(folder) or folder.is_relative_to(path):
            need = f"a path apart from {folder}, like /home, /fsx, /scratch or /mnt/data"
            return [Problem("conflict", (argument,), mount_path, need, f"The mount would hide files of {folder}.")]
    return []


def bucket_name_problems(path: str | Path, name: str, need: str = facts.BUCKET_NAME_TEXT) -> list[Problem]:
    """Check the name of a bucket against the rules of S3."""
    looks_right = re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", name)
    return matches(path, name, facts.BUCKET_NAME_PATTERN, need, facts.BUCKET_NAME_HINT if looks_right else "")


def block_problems(path: str | Path, block: str) -> list[Problem]:
    """Check an IPv4 block of a VPC or subnet: its form, its size, and that hosts can have its addresses."""
    if is_reference(block):
        return item_problems(path, block)
    shortest, longest = facts.MIN_CIDR_PREFIX_LENGTH, facts.MAX_CIDR_PREFIX_LENGTH
    need = f"an IPv4 block of {facts.VPC_PREFIX_TEXT}, like 10.0.0.0/{shortest}"
    try:
        network = IPv4Network(block)
    except ValueError as error:
        return [Problem("malformed", _path(path), block, need, f"{error}.")]
    if "/" in block and str(network) != block:
        return [Problem("malformed", _path(path), block, need, f"Write {network}.")]
    if not shortest <= network.prefixlen <= longest:
        return [Problem("range", _path(path), block, need)]
    for unusable, name in facts.UNUSABLE_RANGES.items():
        if network.subnet_of(IPv4Network(unusable)):
            need = "a block of private addresses, like 10.0.0.0/16"
            return [Problem("range", _path(path), block, need, f"{unusable} is {name}: no host has its addresses.")]
    return []


def resource_id_problems(path: str | Path, value: str, prefix: str) -> list[Problem]:
    """Check the id of an EC2 resource: its prefix, then 8 or 17 hexadecimal digits."""
    need = f"an id like {prefix}-0123456789abcdef0"
    begins_right = isinstance(value, str) and value.startswith(f"{prefix}-")
    hint = "Behind the hyphen an id has 8 or 17 digits, 0 to 9 and a to f." if begins_right else ""
    return matches(path, value, re.compile(prefix + facts.RESOURCE_ID_DIGITS), need, hint)


def duplicate_problems(argument: str, values: Sequence[str]) -> Iterator[Problem]:
    """Report each value that is in a list twice, at its second place."""
    for value, times in Counter(values).items():
        if times > 1 and not is_reference(value):
            second = values.index(value, values.index(value) + 1)
            yield Problem("duplicate", (argument, second), value, "each id once")


def key_arn_problems(key_arn: str | None) -> list[Problem]:
    """Check the ARN of a KMS key, if one is given."""
    return matches("key_arn", key_arn, facts.KEY_ARN_PATTERN, "an ARN like arn:aws:kms:us-west-2:123456789012:key/…")


def matches(path: str | Path, value: str | None, pattern: re.Pattern[str], need: str, hint: str = "") -> list[Problem]:
    """Return a problem if a value is given and does not match the pattern; a Terraform reference always passes."""
    if value is None:
        return []
    if not isinstance(value, str):
        return [Problem("malformed", _path(path), value, need, hint)]
    if is_reference(value) or value.startswith(LIST_MARK):  # Patterns such as `.+` match the mark of a list, too.
        return item_problems(path, value)
    return [] if pattern.fullmatch(value) else [Problem("malformed", _path(path), value, need, hint)]


def item_problems(path: str | Path, value: str) -> list[Problem]:
    """Return a problem if an item is not one of a list, but stands for a list that only Terraform will know."""
    if not value.startswith(LIST_MARK):
        return []
    hint = "Give each item by itself: [Fn.element(items, 0), Fn.element(items, 1)]."
    return [Problem("malformed", _path(path), value, "a list whose length is known when the app runs", hint)]


def choice(path: str | Path, value: object, choices: Sequence[object], context: str = "") -> list[Problem]:
    """Return a problem if a value is given and is not one of the choices."""
    return (
        []
        if value is None or value in choices
        else [Problem("choice", _path(path), value, f"{one_of(choices)}{context}")]
    )


def within(path: str | Path, value: int | None, minimum: int, maximum: int, need: str = "") -> list[Problem]:
    """Return a problem if a number is given and is outside its inclusive range."""
    return (
        []
        if value is None or minimum <= value <= maximum
        else [Problem("range", _path(path), value, need or f"{minimum} to {maximum}")]
    )


def is_reference(value: str) -> bool:
    """Return whether only Terraform will know the value."""
    return is_token(value)


def one_of(choices: Sequence[object]) -> str:
    """Return the choices as text: ``a, b or c``."""
    *leading, final = map(str, choices)
    return f"{', '.join(leading)} or {final}" if leading else final


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 zone``, ``no zones``, ``2 zones``."""
    return f"1 {noun}" if count == 1 else f"{count or 'no'} {noun}s"


def _path(path: str | Path) -> Path:
    return (path,) if isinstance(path, str) else path
