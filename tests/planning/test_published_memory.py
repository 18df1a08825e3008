"""Memory of published runs: adapters, quantised weights, and activations of other trainers."""

from dataclasses import replace

import pytest
from published.constants import constants
from published.layout import RECOMPUTES, PublishedLayout
from published.memory import least_recomputation, memory
from published.software import software_named

from podwright.planning.accelerator import Accelerator
from podwright.planning.model import Model

LLAMA, H100 = Model.of("llama3_1_8b"), Accelerator.of("H100")


def test_quantised_weights_are_smaller():
    """QLoRA keeps matrices in 4 bits, LoRA in 16, and neither has moments for them."""
    lit = software_named("litgpt-finetune")
    sizes = {
        kind: memory(
            LLAMA, PublishedLayout(gpus=1, micro_batch=1, sequence=512, sharding="none", training=kind), H100, lit
        )
        for kind in ("qlora", "lora", "full")
    }
    assert sizes["qlora"].parameters < 0.4 * sizes["lora"].parameters
    assert sizes["lora"].optimizer < 0.01 * sizes["full"].optimizer


def test_recomputing_the_mlp_comes_before_recomputing_all():
    """Megatron's ``mlp`` needs more memory than full recomputation and less than any other recomputation."""
    software = software_named("megatron-core.26")
    layout = PublishedLayout(gpus=64, micro_batch=8, sequence=2048, sharding="optimizer")
    peaks = [memory(LLAMA, replace(layout, recompute=recompute), H100, software).peak_gb for recompute in RECOMPUTES]
    assert min(peaks[:2]) > peaks[2] > peaks[3]
    assert least_recomputation(LLAMA, layout, H100, software).recompute == "mlp"


@pytest.mark.parametrize(
    ("software", "recompute", "published"),
    [
        ("megatron-core", "none", (34 - 2) / 8),  # flash attention keeps no scores; no dropout, so no masks
        ("megatron-core", "full", 2 / 8),
        ("deepspeed-2022", "none", 10 + 24 / 8 + 5 * 96 * 2048 / 12288 / 8),
    ],
)
def test_activations_agree_with_published_formulas(software, recompute, published):
    """Of a layer of GPT-3 over 8 ranks, table 2 of arXiv:2205.05198 in units of tokens times the hidden size."""
    gpt3 = Model(
        name="gpt3",
        hidden_size=12288,
        layers=96,
        heads=96,
        kv_heads=96,
        head_dim=128,
        ffn=4 * 12288,
        vocab=51200,
        gated=False,
        bias="all",
        norm_vectors=2,
        tied=True,
    )
    layout = {"gpus": 64, "tensor": 8, "pipeline": 8, "micro_batch": 1, "sequence": 2048, "micro_batches": 64}
    found = memory(
        gpt3,
        PublishedLayout(**layout, recompute=recompute, sharding="none"),
        Accelerator.of("A100-80GB"),
        software_named(software),
        constants=constants().replaced({"kept.megatron-core": 1.0, "working_set": 0.0}),
    )
    per_layer = found.activations * 1e9 / (2048 * 12288) / 96  # twelve layers, eight micro-batches in flight
    assert per_layer == pytest.approx(published, rel=0.1)
