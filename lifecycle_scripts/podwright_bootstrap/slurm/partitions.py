"""Limits of partitions, in the lines that the service wrote for them.

Slurm has one line per partition, so ours go into the service's. What they replace is noted behind them: a limit that
cluster.yaml no longer has leaves the line as the service wrote it.
https://slurm.schedmd.com/slurm.conf.html#SECTION_PARTITION-CONFIGURATION
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping

from podwright_bootstrap.features import PartitionLimits

NOTE = "# podwright replaced:"


def limited(text: str, partitions: Iterable[PartitionLimits]) -> str:
    """Return slurm.conf's text with the limits in the lines of their partitions."""
    limits = {partition.name: _options(partition) for partition in partitions}
    lines = []
    for line in text.splitlines():
        match = re.match(r"(?i)\s*PartitionName=(\S+)", line)
        options = limits.get(match[1], {}) if match else {}
        lines.append(_line(line, options) if match and (options or NOTE in line) else line)
    return "".join(f"{line}\n" for line in lines)


def missing(text: str, partitions: Iterable[PartitionLimits]) -> List[str]:
    """Return the partitions that slurm.conf's text does not have."""
    existing_names = set(re.findall(r"(?im)^\s*PartitionName=(\S+)", text))
    return [partition.name for partition in partitions if partition.name not in existing_names]


def _options(limits: PartitionLimits) -> Dict[str, str]:
    options = {
        "MaxTime": limits.max_minutes,
        "DefaultTime": limits.default_minutes,
        "MaxNodes": limits.max_nodes,
        "AllowAccounts": ",".join(limits.accounts) or None,
        "AllowQos": ",".join(limits.qos) or None,
    }
    return {key: str(value) for key, value in options.items() if value is not None}


def _line(line: str, options: Mapping[str, str]) -> str:
    text, _, note = line.partition(NOTE)
    replaced = dict(word.split("=", 1) for word in note.split())
    original = [word for word in text.split() if not _is_one_of(word, replaced)]
    original += [f"{key}={value}" for key, value in replaced.items() if value]
    if not options:
        return " ".join(original)
    before = {key: "".join(word.split("=", 1)[1] for word in original if _is_one_of(word, [key])) for key in options}
    words = [word for word in original if not _is_one_of(word, options)]
    words += [f"{key}={value}" for key, value in options.items()]
    return " ".join([*words, NOTE, *(f"{key}={value}" for key, value in before.items())])


def _is_one_of(word: str, keys: Iterable[str]) -> bool:
    return word.split("=", 1)[0].lower() in {key.lower() for key in keys}
