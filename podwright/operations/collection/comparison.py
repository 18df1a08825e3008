"""Compare a cluster's profile with another one, such as that of the rehearsal: one line for each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from podwright.operations.collection.cluster_profile import ClusterProfile

NOTHING = "nothing"
# Facts of the machine that runs a rehearsal, which no host of it chooses.
OF_THE_MACHINE = {
    *(("system", key) for key in ("kernel", "cgroup", "cgroup controllers")),
    *(("mounts", place) for place in ("/", "/fsx", "/sys/fs/cgroup")),
}


class Difference(NamedTuple):
    """A key that two profiles do not agree on; a value is None if the profile lacks the key."""

    source: str
    section: str
    key: str
    value: str | None
    expected: str | None

    def line(self, expected_name: str) -> str:
        """Return the difference in one line; ``expected_name`` is the name of the second profile."""
        value, expected = (NOTHING if item is None else item or '""' for item in (self.value, self.expected))
        return f"{self.source}: {self.section}: {self.key}: {value}; {expected_name} has {expected}"


def differences(profile: ClusterProfile, expected: ClusterProfile) -> Iterator[Difference]:
    """Yield what two profiles do not agree on; a role that one of them lacks is not compared."""
    for role in profile.nodes.keys() & expected.nodes.keys():
        yield from _of_sections(role, profile.nodes[role], expected.nodes[role])
    yield from _of_sections("API", profile.api, expected.api)


def _of_sections(
    source: str, sections: Mapping[str, Mapping[str, str]], expected: Mapping[str, Mapping[str, str]]
) -> Iterator[Difference]:
    for section in dict.fromkeys([*expected, *sections]):
        values, expected_values = sections.get(section, {}), expected.get(section, {})
        for key in sorted(values.keys() | expected_values.keys()):
            if (section, key) not in OF_THE_MACHINE and values.get(key) != expected_values.get(key):
                yield Difference(source, section, key, values.get(key), expected_values.get(key))
