"""The settings of Lustre's client that AWS recommends for large instances.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance-tips.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.contract import InstanceFacts
from podwright_bootstrap.host import files, units

MODULES = Path("/etc/modprobe.d/podwright-lustre.conf")
UNIT = "podwright-lustre.service"
LARGE_MEMORY_GIB = 64
LARGE_VCPUS = 64


def module_options(facts: InstanceFacts) -> Iterator[str]:
    """Write the modules' options, read when they are loaded: before the first mount, or at the next reboot."""
    if facts.vcpus > LARGE_VCPUS:
        lines = "options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n"
        if files.write_file(MODULES, lines):
            yield f"wrote {MODULES}"


def parameters(facts: InstanceFacts, mount_path: Path) -> Iterator[str]:
    """Set the client's parameters, which an unmount resets, with a unit that follows the mount."""
    settings = _parameters(facts)
    if settings:
        yield from units.run_at_boot(UNIT, _unit(settings, mount_path))


def forget() -> Iterator[str]:
    """Leave modules and client as they are by themselves, from the next reboot on."""
    yield from units.remove(UNIT)
    yield from files.remove_files(MODULES)


def _parameters(facts: InstanceFacts) -> List[str]:
    settings: List[str] = []
    if facts.memory_gib > LARGE_MEMORY_GIB:
        settings += ["ldlm.namespaces.*.lru_max_age=600000", f"ldlm.namespaces.*.lru_size={100 * facts.vcpus}"]
    if facts.vcpus > LARGE_VCPUS:
        settings += [
            "osc.*OST*.max_rpcs_in_flight=32",
            "mdc.*.max_rpcs_in_flight=64",
            "mdc.*.max_mod_rpcs_in_flight=50",
        ]
    return settings


def _unit(settings: List[str], mount_path: Path) -> str:
    lines = "".join(f"ExecStart=/usr/sbin/lctl set_param {parameter}\n" for parameter in settings)
    return (
        f"[Unit]\nDescription=Lustre's client as AWS recommends\nRequiresMountsFor={mount_path}\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStartSec={units.START_LIMIT_S}\n{lines}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
