"""Metrics that only NVIDIA's DCGM has: the work of tensor cores, of GPU memory and of links.

Everything else of GPUs comes from nvidia-smi, on every node with GPUs: no value is sent twice.
https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgm-exporter.html
"""

from __future__ import annotations

import json
import shutil
from typing import Iterator

from podwright_bootstrap.host import files, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.software import metrics_service
from podwright_bootstrap.steps import Step

UNIT = "podwright-dcgm-exporter"
PORT = 9400  # dcgm-exporter's own
PROGRAMS = ("dcgmi", "nv-hostengine")  # either says that the image has DCGM
ENGINE, ENGINE_ADDRESS = "nvidia-dcgm", "127.0.0.1:5555"  # the service of DCGM's packages, which runs as root
EXPORTER = "dcgm-exporter"
IMAGES = "dcgm-exporter"  # the end of a container image's name
TARGET = metrics_service.TARGETS / "dcgm.json"
FIELDS = metrics_service.DATA / "dcgm.csv"
COUNTERS = """\
# Written by podwright's bootstrap. What nvidia-smi does not know: DCGM field, type, meaning.
DCGM_FI_PROF_SM_ACTIVE, gauge, Share of time in which a multiprocessor had work
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Share of time in which tensor cores computed
DCGM_FI_PROF_DRAM_ACTIVE, gauge, Share of time in which memory was read or written
DCGM_FI_PROF_NVLINK_TX_BYTES, gauge, Bytes a second sent over NVLink
DCGM_FI_PROF_NVLINK_RX_BYTES, gauge, Bytes a second received over NVLink
DCGM_FI_PROF_PCIE_TX_BYTES, gauge, Bytes a second sent over PCIe
DCGM_FI_PROF_PCIE_RX_BYTES, gauge, Bytes a second received over PCIe
DCGM_FI_DEV_MEMORY_TEMP, gauge, Temperature of the memory in degrees Celsius
"""


class DcgmStep(Step):
    """DCGM, if the image has it, measures tensor cores, memory and links of GPUs."""

    name = "dcgm"
    audience = "GPU nodes with metrics whose image has DCGM"
    hint = f"journalctl -u {UNIT} says more"
    time_limit_s = 300
    degraded_feature = "metrics of tensor cores and links; all others of its GPUs come from nvidia-smi"

    def applies(self, node: Node) -> bool:
        """Run with nodes.observability."""
        measures_gpus = node.parameters.nodes.observability is not None and node.facts.accelerator == "gpu"
        return measures_gpus and any(map(process.finds, PROGRAMS))

    def apply(self, node: Node) -> Iterator[str]:
        """Start the exporter, and let the agent ask it."""
        gpu_jobs.FOLDER.mkdir(mode=0o755, exist_ok=True)
        changed = files.write_file(FIELDS, COUNTERS)
        if changed:
            yield f"wrote {FIELDS}"
        about = "Metrics of GPUs from DCGM"
        options = (
            f"--address {node.address}:{PORT} --collectors {FIELDS} --collect-interval {_interval_ms(node)} "
            f"--hpc-job-mapping-dir {gpu_jobs.FOLDER}"
        )
        if process.finds(EXPORTER):
            engine = units.answer("is-active", ENGINE) == "active"  # Without it the exporter starts its own engine.
            command = f"{shutil.which(EXPORTER)} {options}" + (f" --remote-hostengine-info {ENGINE_ADDRESS}" * engine)
            rights = "" if engine else "CAP_SYS_ADMIN"  # NVIDIA's driver requires this for profiling counters.
            yield from metrics_service.keep(UNIT, about, command, capabilities=rights, restart=changed)
        else:
            yield from metrics_service.keep(UNIT, about, _container(options), user="root", restart=changed)
        target = {"targets": [f"{node.address}:{PORT}"], "labels": {"instance": node.hostname}}
        if files.write_file(TARGET, json.dumps([target]) + "\n"):
            yield f"wrote {TARGET}"

    def remove(self, node: Node) -> Iterator[str]:
        """Stop the exporter."""
        yield from units.remove(f"{UNIT}.service")
        yield from files.remove_files(TARGET, FIELDS)

    def verify(self, node: Node) -> None:
        """Check that the exporter serves a value of a GPU."""
        url = f"http://{node.address}:{PORT}/metrics"
        waits.wait_until(
            lambda: "DCGM_FI_" in metrics_service.get(url),
            event=f"{url} to give metrics of DCGM",
            limit_s=metrics_service.ANSWER_LIMIT_S,
            hint=self.hint,
        )


def _interval_ms(node: Node) -> int:
    settings = node.parameters.nodes.observability
    return (settings.interval_s if settings else 30) * 1000


def _container(options: str) -> str:
    """Return the command that runs the exporter's container, which needs the image on this node."""
    listed = ("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
    names = process.run(*listed, timeout_s=60, check=False, quiet=True).lines if process.finds("docker") else []
    image = next((name for name in names if name.rpartition(":")[0].endswith(IMAGES)), None)
    if image is None:
        raise BootstrapError(
            f"this image has DCGM and no {EXPORTER}, neither as a program nor as a container image",
            hint=f"make an image with NVIDIA's package of {EXPORTER} that fits its DCGM (image_id), or skip: [dcgm]",
        )
    mounts = f"--volume {FIELDS}:{FIELDS}:ro --volume {gpu_jobs.FOLDER}:{gpu_jobs.FOLDER}:ro"
    rights = "--gpus all --cap-add SYS_ADMIN --network host"
    docker = shutil.which("docker")
    run = f"exec {docker} run --pull never --rm --name {UNIT} {rights} {mounts} {image} {options}"
    return f"/bin/sh -c '{docker} rm --force {UNIT}; {run}'"
