"""DNS names of the file systems: HyperPod may restart a new host's resolver in its first seconds."""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap.host import errors, process, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

RESOLVE_LIMIT_S = 300


class DnsStep(Step):
    """The names that this boot mounts from resolve to addresses of other hosts."""

    name = "dns"
    audience = "clusters with a file system"
    required_because = "file systems are mounted by the names that it waits for"
    hint = "does the VPC have enableDnsSupport and enableDnsHostnames, and is the file system in it?"
    time_limit_s = 2 * RESOLVE_LIMIT_S

    def applies(self, node: Node) -> bool:
        """Run in clusters with a file system."""
        return bool(_wanted(node))

    def apply(self, node: Node) -> Iterator[str]:
        """Do nothing: this step only checks."""
        return iter(())

    def verify(self, node: Node) -> None:
        """Ask until each has an address."""
        silent = _wanted(node)

        def answered() -> bool:
            silent[:] = [name for name in silent if not _resolves(name)]
            return not silent

        try:
            waits.wait_until(answered, event="DNS", limit_s=RESOLVE_LIMIT_S)
        except BootstrapError as error:
            raise BootstrapError(f"{error}: no address for {', '.join(silent)}", hint=self.hint) from error


def _wanted(node: Node) -> list[str]:
    parameters = node.parameters
    return [name for name in (parameters.fsx_dns_name, parameters.fsx_openzfs_dns_name) if name]


def _resolves(name: str) -> bool:
    """By a program that can be ended: the resolver's own calls cannot. This host's own address is no answer."""
    try:
        answer = process.run("getent", "ahostsv4", name, timeout_s=15, check=False, quiet=True).output
    except errors.CommandError:
        return False
    addresses = {line.split()[0] for line in answer.splitlines() if line.strip()}
    return bool(addresses) and not any(address.startswith("127.") for address in addresses)
