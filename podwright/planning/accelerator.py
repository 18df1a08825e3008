"""Accelerators: data-sheet figures, and the measured bandwidth between them."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from podwright.errors import PodwrightError
from podwright_common.similar_names import question, similar_names

_MAKER = re.compile(r"nvidia|tesla|amd|instinct|geforce|google|aws|intel|cloud|sxm\d?|hbm\d?e?|tensor core|gpu")


class UnknownAcceleratorError(PodwrightError, ValueError):
    """The catalog has no accelerator of that name. The message lists the closest names."""

    def __init__(self, name: str) -> None:
        keys = similar_names(_key(name), _catalog(), limit=3, cutoff=0.5)
        similar = dict.fromkeys(_catalog()[key].name for key in keys)
        hint = question(similar) or f"use one of {', '.join(accelerator_names())}"
        super().__init__(f"{name!r} is not in the catalog of accelerators: {hint}")


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One accelerator, its links and its share of the node's network.

    - ``memory_gb``: the memory a program can allocate, in 1e9 bytes.
    - ``peak_fp32_tflops``: the rate of the fp32 units. TF32 is off by default in PyTorch and in podwright-train.
      Read for Trainium, B200, GB200 and RTX PRO; the other values are data-sheet figures recalled, not looked up again.
    - ``link_gb_s``: the measured all-reduce bus bandwidth among the ``link_domain`` accelerators of one NVLink domain
      (or its equivalent).
    - ``nic_gb_s``: its share of the node's network bandwidth, one way.
    - ``latency_us``: the part of a collective between nodes that does not depend on its size.
    - ``host_gb_s``: bandwidth to the host's memory, one way.
    """

    name: str
    generation: str
    memory_gb: float
    peak_bf16_tflops: float
    peak_fp32_tflops: float
    peak_fp8_tflops: float
    peak_fp4_tflops: float
    memory_tb_s: float
    multiprocessors: int
    link_gb_s: float
    link_domain: int
    nic_gb_s: float
    latency_us: float
    watts: float
    host_gb_s: float
    dies: int = 1  # a program sees each as an accelerator

    @classmethod
    def of(cls, name: str) -> Accelerator:
        """Return the accelerator of that name (``H100``, ``A100-80GB``, ``A10G``, ``trn1-chip``).

        Raises:
            UnknownAcceleratorError: The message lists the closest names.
        """
        try:
            return _catalog()[_key(name)]
        except KeyError:
            raise UnknownAcceleratorError(name) from None

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak in FLOP/s at ``bf16``, ``fp32``, ``fp8`` or ``fp4``."""
        tflops = {
            "bf16": self.peak_bf16_tflops,
            "fp32": self.peak_fp32_tflops,
            "fp8": self.peak_fp8_tflops,
            "fp4": self.peak_fp4_tflops,
        }[precision]
        return tflops * 1e12

    def core(self) -> Accelerator:
        """Return one core or die, which a program sees as an accelerator: a Trainium chip has two."""
        shared = (
            *("memory_gb", "peak_bf16_tflops", "peak_fp32_tflops", "peak_fp8_tflops", "peak_fp4_tflops", "memory_tb_s"),
            *("link_gb_s", "nic_gb_s", "watts", "host_gb_s"),
        )
        return replace(
            self,
            link_domain=self.dies * self.link_domain,
            multiprocessors=max(1, self.multiprocessors // self.dies),
            dies=1,
            **{name: getattr(self, name) / self.dies for name in shared},
        )

    def with_network(self, *, node_gb_s: float, gpus_per_node: int) -> Accelerator:
        """Return this accelerator in nodes of ``gpus_per_node`` with ``node_gb_s`` of network, one way."""
        return replace(self, nic_gb_s=node_gb_s / gpus_per_node, link_domain=max(self.link_domain, gpus_per_node))


def accelerator_names() -> tuple[str, ...]:
    """Return the names in the catalog."""
    return tuple(dict.fromkeys(accelerator.name for accelerator in _catalog().values()))


def _key(name: str) -> str:
    """Return the name in lower case without maker, package and punctuation: ``a10080gb``."""
    text = _MAKER.sub("", name.lower())
    return "".join(letter for letter in text if letter.isalnum())


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Accelerator]:
    text = files(__package__).joinpath("data/accelerators.csv").read_text(encoding="utf-8")
    catalog = {}
    for row in csv.DictReader(text.splitlines()):
        numbers = {
            key: float(value) for key, value in row.items() if key not in {"name", "aliases", "generation", "source"}
        }
        accelerator = Accelerator(
            name=row["name"],
            generation=row["generation"],
            multiprocessors=int(numbers.pop("multiprocessors")),
            link_domain=int(numbers.pop("link_domain")),
            dies=int(numbers.pop("dies")),
            **numbers,
        )
        for name in [row["name"], *row["aliases"].split(";")]:
            if name:
                catalog[_key(name)] = accelerator
    return catalog
