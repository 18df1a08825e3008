"""Operations that Neuron lacks are refused on a CPU too, and the trainer uses no such operation."""

import pytest
import torch

from podwright_testing.metrics import logged
from podwright_training.__main__ import main
from podwright_training.device_rules import DeviceRuleError, NeuronRules
from podwright_training.run_folder import RunFolder

WAYS = {
    "documents": {"document_mask": True, "activation_checkpointing": True},
    "window": {
        "model_type": "mistral",
        "sliding_window": 8,
        "gradient_accumulation_steps": 2,
        "adaptive_grad_clip": 0.1,
        "ema_decay": 0.9,
    },
    "precision": {"precision": "bf16", "z_loss": 1e-4, "loss_chunk_tokens": 0, "optimizer": "muon"},
}


def curve(folder):
    """Losses and norms of all steps, and the validation's loss."""
    events = logged(RunFolder(folder))
    return [
        [event["event"], event["step"], event["loss"], event.get("grad_norm")]
        for event in events
        if event["event"] in ("train", "validation")
    ]


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.slow
def test_a_run_by_neurons_rules_has_the_losses_of_the_run_without(tiny_flags, tmp_path, options):
    """The same configuration on a CPU, through Neuron's attention: equal to the last bit."""
    shared = {"ranks": 1, "attention": "sdpa", "max_steps": 3, "validation_freq": 2, "checkpoint_freq": 3, **options}
    for name, rules in (("with", "neuron"), ("without", "none")):
        assert main(["train", *tiny_flags(tmp_path / name, device_rules=rules, **shared)]) == 0
    found = curve(tmp_path / "with")
    assert len(found) == 5
    assert found == curve(tmp_path / "without")


SEVERAL = {"FSDP2": (2, {}), "tensor": (1, {"tensor_parallel": 2})}


@pytest.mark.parametrize(("data_ranks", "options"), SEVERAL.values(), ids=SEVERAL)
@pytest.mark.slow
def test_ranks_by_neurons_rules_have_the_losses_of_ranks_without(tiny_flags, call_ranks, tmp_path, data_ranks, options):
    """Two ranks that divide the weights, or the matrices, on CPUs: equal to the last bit too."""
    shared = {"ranks": data_ranks, "attention": "sdpa", "max_steps": 3, "validation_freq": 2, **options}
    for name, rules in (("with", "neuron"), ("without", "none")):
        status, output = call_ranks(2, "train", *tiny_flags(tmp_path / name, device_rules=rules, **shared))
        assert status == 0, output
    found = curve(tmp_path / "with")
    assert len(found) == 5
    assert found == curve(tmp_path / "without")


BROKEN = {
    "float64": (lambda x: x.double(), "float64, which Neuron lacks"),
    "complex": (lambda x: torch.view_as_complex(x.view(-1, 2)), "complex64, which Neuron lacks"),
    "nonzero": (lambda x: x.nonzero(), "shape depends on values"),
    "masked_select": (lambda x: x[x > 0], "shape depends on values"),
    "unique": (lambda x: x.unique(), "shape depends on values"),
    "item": (lambda x: x.sum().item(), "waits for the device"),
    "tolist": (lambda x: x.tolist(), "waits for the device"),
    "branch": (lambda x: 1 if x.sum() > 0 else 2, "waits for the device"),
}


@pytest.mark.parametrize(("operation", "message"), BROKEN.values(), ids=BROKEN)
def test_an_operation_that_neuron_lacks_is_named(operation, message):
    """With its part of the step and what to do."""
    with pytest.raises(DeviceRuleError, match=message) as found, NeuronRules().part("the loss"):
        operation(torch.ones(4))
    assert str(found.value).startswith("device_rules neuron: in the loss, ")
    assert "\n" not in str(found.value)


def test_another_shape_in_a_later_step_is_refused():
    """The first run of a part may have any shapes; of other parts and operations too."""
    rules = NeuronRules()
    for width in (4, 4):
        with rules.part("a"):
            torch.ones(width) + 1
    with rules.part("b"):
        torch.ones(5) + 1
    with pytest.raises(DeviceRuleError, match="another shape"), rules.part("a"):
        torch.ones(5) + 1


def test_a_run_that_breaks_a_rule_ends_in_one_line(tiny_flags, tmp_path, capsys):
    """A batch that grows from one micro-batch of 8 to another of 4 has another shape."""
    grows = {"global_batch_size": 12, "batch_ramp": 1.0, "max_steps": 4}
    assert main(["train", *tiny_flags(tmp_path, ranks=1, device_rules="neuron", **grows)]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: device_rules neuron: in forward and backward, ")
    assert "another shape than in the steps before" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": True}, "device_rules neuron checks single operations: leave compile out"),
        ({"document_mask": True}, "device_rules neuron with document_mask or sliding_window needs attention sdpa"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "train a dense model"),
    ],
)
def test_options_that_break_every_run_are_refused_at_once(tiny_flags, tmp_path, capsys, options, message):
    """Before torch is imported, in one line."""
    assert main(["train", *tiny_flags(tmp_path, ranks=1, device_rules="neuron", **options)]) == 2
    assert message in capsys.readouterr().err
