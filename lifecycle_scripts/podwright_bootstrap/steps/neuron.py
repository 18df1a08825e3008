"""AWS's tools for Trainium and Inferentia, and the kernel settings that NxD Training needs.

https://awsdocs-neuron.readthedocs-hosted.com/en/latest/setup/neuron-setup/pytorch/neuronx/ubuntu/torch-neuronx-ubuntu22.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap.host import files, process
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import packages
from podwright_bootstrap.steps import Step

PACKAGES = {"driver": "aws-neuronx-dkms", "tools": "aws-neuronx-tools", "runtime": "aws-neuronx-runtime-lib"}
KERNEL = Path("/etc/sysctl.d/99-podwright-neuron.conf")
PORT = "41000"  # port of NxD Training's first rank; reserved, so that no other program gets it by chance
RESERVED, PAGES = "net.ipv4.ip_local_reserved_ports", "vm.nr_hugepages"


class NeuronStep(Step):
    """Driver, runtime and tools of Neuron are installed, the tools in the requested version."""

    name = "neuron"
    audience = "nodes with Trainium or Inferentia of clusters with nodes.neuron"
    hint = "apt-cache policy aws-neuronx-tools lists the versions; the image's apt must know AWS's Neuron repository"
    time_limit_s = 1800

    def applies(self, node: Node) -> bool:
        """On Neuron's instance types, if it is asked for."""
        return node.facts.accelerator == "neuron" and node.parameters.nodes.neuron is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Install the version that is asked for, from the signed repository that the image's apt knows."""
        version = _tools_version(node)
        if version and _installed(PACKAGES["tools"]) != version:
            package = f"{PACKAGES['tools']}={version}"
            packages.install(package, node=node)
            yield f"installed {package}"
        differing = _differing(node)
        if differing:
            text = "".join(f"{name} = {value}\n" for name, value in _kernel(node).items())
            files.write_file(KERNEL, text)
            process.run("sysctl", "--load", KERNEL, timeout_s=60)
            yield f"loaded {KERNEL}"

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the kernel's settings; its values stay until a reboot."""
        yield from files.remove_files(KERNEL)

    def verify(self, node: Node) -> None:
        """All three are installed, the driver is loaded, the kernel has the values."""
        missing = [f"{role} ({package})" for role, package in PACKAGES.items() if not _installed(package)]
        if missing:
            raise CommandError(f"the image lacks Neuron's {', '.join(missing)}")
        version = _tools_version(node)
        if version and _installed(PACKAGES["tools"]) != version:
            raise CommandError(f"{PACKAGES['tools']} is {_installed(PACKAGES['tools'])}, not {version}")
        process.run("modprobe", "neuron", timeout_s=60)  # it was built for the running kernel
        differing = _differing(node)
        if differing:
            values = ", ".join(f"{name} is {value or 'empty'}" for name, value in differing.items())
            raise CommandError(f"the kernel does not have the values of {KERNEL}: {values}")


def _kernel(node: Node) -> Dict[str, str]:
    """Return the kernel's settings; ports that are reserved already stay so."""
    reserved = _value(RESERVED).split(",")
    values = {RESERVED: ",".join(filter(None, [*(port for port in reserved if port != PORT), PORT]))}
    neuron = node.parameters.nodes.neuron
    if neuron and neuron.huge_pages:
        values[PAGES] = str(neuron.huge_pages)
    return values


def _differing(node: Node) -> Dict[str, str]:
    """Return the kernel's values that are not as wanted."""
    differing = {}
    if PORT not in _value(RESERVED).split(","):
        differing[RESERVED] = _value(RESERVED)
    pages = _kernel(node).get(PAGES)
    if pages and _value(PAGES) != pages:
        differing[PAGES] = _value(PAGES)
    return differing


def _value(name: str) -> str:
    return process.run("sysctl", "-n", name, timeout_s=30, check=False, quiet=True).output.strip()


def _tools_version(node: Node) -> str:
    neuron = node.parameters.nodes.neuron
    return (neuron.tools_version if neuron else None) or ""


def _installed(package: str) -> str:
    """Return the version that dpkg has installed; "" if it is not installed, or only its settings are left."""
    columns = "--showformat=${db:Status-Status} ${Version}"
    shown = process.run("dpkg-query", "--show", columns, package, timeout_s=30, check=False, quiet=True)
    status, _, version = shown.output.strip().partition(" ")
    return version if shown.exit_code == 0 and status == "installed" else ""
