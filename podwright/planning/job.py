"""Estimate the time and cost of another trainer's job, at the MFU of published runs: its own speed is not known yet."""

from __future__ import annotations

from typing import NamedTuple

from podwright.planning.on_demand import on_demand
from podwright.planning.units import HOUR_S, format_count, format_duration
from podwright_constructs.catalog import InstanceType
from podwright_training.hardware import rank_peak_flops
from podwright_training.jobs.spec import JobSpec
from podwright_training.neuron import ranks_per_device

USUAL_MFU = {"A100": 0.54, "H100": 0.40, "Trainium": 0.30}  # medians of bench/data's runs of dense models
OTHER_MFU = 0.40  # A guess: other accelerators have too few published runs for a median.


class Figures(NamedTuple):
    """Speed and price of a job.

    Attributes:
        accelerator: Of its nodes, whose peak the MFU refers to.
        mfu: Assumed.
        tokens_per_s: Of all ranks.
        usd_per_hour: EC2's on-demand price of its nodes; ``None`` if EC2 publishes none.
        hours: Of the whole run, without starts and failures; ``None`` if the job does not say its steps.
    """

    accelerator: str
    mfu: float
    step_s: float
    tokens_per_s: float
    usd_per_hour: float | None
    hours: float | None

    @property
    def text(self) -> str:
        """Return the figures as one sentence."""
        basis = "as half of the published runs reach" if self.accelerator in USUAL_MFU else "which is a guess"
        speed = f"{format_duration(self.step_s)} a step, {format_count(self.tokens_per_s)} tokens/s"
        usd = self.usd_per_hour
        price = "" if usd is None else f", {usd / HOUR_S / self.tokens_per_s * 1e6:,.3g} $ per million tokens"
        run_text = "" if self.hours is None else f"; the run takes {format_duration(self.hours * HOUR_S)}"
        if usd is not None and self.hours is not None:
            run_text += f" and {usd * self.hours:,.0f} $"
        return f"at {self.mfu:.0%} of {self.accelerator}'s peak, {basis}: {speed}{price}{run_text}"


def figures(job: JobSpec, kind: InstanceType, region: str) -> Figures | None:
    """Return a job's time and cost on nodes of a kind; ``None`` if its model or their peak is not known."""
    model, name = job.model, kind.accelerator_name
    peak = rank_peak_flops(name)
    if not (peak and model.flops and model.tokens_per_step):
        return None
    ranks = job.nodes * (job.ranks_per_node or kind.accelerator_count * ranks_per_device(name))
    mfu = USUAL_MFU.get(name, OTHER_MFU)
    step_s = model.flops * model.tokens_per_step / (mfu * peak * ranks)
    price = on_demand(kind.name, region)
    return Figures(
        accelerator=name,
        mfu=mfu,
        step_s=step_s,
        tokens_per_s=model.tokens_per_step / step_s,
        usd_per_hour=price.usd_per_hour * job.nodes if price else None,
        hours=model.steps * step_s / HOUR_S if model.steps else None,
    )
