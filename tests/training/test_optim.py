"""The optimizers do on two ranks, and in few words, what the papers say they do."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from podwright_training.config.train_config import TrainConfig
from podwright_training.optim import Optimizers, clip_adaptively
from podwright_training.parallel import squared_norm

STEPS = 6


def model():
    """Parameters of every kind: embedding, matrix, tall matrix, stacked experts, norm, head."""
    torch.manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (10, 6),
        "model.layers.0.q_proj.weight": (6, 6),
        "model.layers.0.up_proj.weight": (9, 6),
        "model.layers.0.experts.weight": (3, 4, 6),
        "model.layers.0.norm.weight": (6,),
        "lm_head.weight": (10, 6),
    }
    return nn.ParameterDict(
        {name.replace(".", "-"): nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    )


def named(holder):
    return [(name.replace("-", "."), parameter) for name, parameter in holder.items()]


def give_gradients(holder, step):
    """The same gradient however the parameter is divided, well conditioned so that Muon's bf16 hardly matters."""
    for number, (_, parameter) in enumerate(sorted(holder.items())):  # sharding changes their order
        generator = torch.Generator().manual_seed(100 * step + number)
        full = torch.empty(parameter.shape).normal_(generator=generator)
        if full.ndim == 2:
            full = torch.linalg.qr(full)[0].contiguous() + 0.1 * full
        parameter.grad = like(full, parameter)


def like(full, parameter):
    if not isinstance(parameter, DTensor):
        return full
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def learn(holder, **options):
    """Some steps; what parameters and optimizers are then, and the squared norm of each step's clipped gradient."""
    optimizers = Optimizers(named(holder), TrainConfig(**options))
    norms = []
    for step in range(STEPS):
        give_gradients(holder, step)
        if options.get("adaptive_grad_clip"):
            clip_adaptively(holder.values(), options["adaptive_grad_clip"])
        norms.append(squared_norm(holder.values()).item())
        optimizers.step(lr=0.05)
    parameters = {name: whole(parameter) for name, parameter in named(holder)}
    return parameters, {name: whole(value) for name, value in optimizers.state_dict().items()}, norms


def learn_in_all_ways(holder_of):
    ways = {
        "adamw": {"ema_decay": 0.9, "adaptive_grad_clip": 0.05},
        "muon": {"optimizer": "muon", "ema_decay": 0.5},
    }
    return {name: learn(holder_of(), **options) for name, options in ways.items()}


def sharded():
    holder = model()
    fully_shard(holder, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return holder


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory, run_ranks):
    """Return the result of two ranks that share every parameter."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(__file__, folder, ranks=2)
    return torch.load(folder / "rank-0.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone():
    """Return the result of one process."""
    return learn_in_all_ways(model)


def test_two_ranks_learn_what_one_process_learns(on_two_ranks, alone):
    """AdamW with its average and adaptive clipping: sharding changes nothing."""
    for there, here in zip(on_two_ranks["adamw"][:2], alone["adamw"][:2], strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)
    assert on_two_ranks["adamw"][2] == pytest.approx(alone["adamw"][2], rel=1e-5)


def test_muon_on_two_ranks_is_muon(on_two_ranks, alone):
    """Its update is of whole matrices, not of shards: but for bf16's rounding the parameters are the same."""
    there, here, before = on_two_ranks["muon"][0], alone["muon"][0], dict(named(model()))
    for name, parameter in here.items():
        assert (there[name] - parameter).norm() < 0.02 * (parameter - before[name]).norm(), name


def test_muon_takes_the_matrices_of_blocks_alone(alone):
    """Embedding, head, norms and stacked experts remember what AdamW remembers."""
    keys = {name: name.split(".")[-1] for name in alone["muon"][1]}
    muon = {name.removesuffix(".momentum_buffer") for name, key in keys.items() if key == "momentum_buffer"}
    adamw = {name.removesuffix(".exp_avg_sq") for name, key in keys.items() if key == "exp_avg_sq"}
    assert muon == {"model.layers.0.q_proj.weight", "model.layers.0.up_proj.weight"}
    assert muon | adamw == {name for name, _ in named(model())}


def test_adaptive_clipping_bounds_each_matrix_by_its_own_norm():
    """No matrix's gradient exceeds its share, a smaller one and a norm's stay as they are."""
    holder = model()
    give_gradients(holder, 0)
    holder["lm_head-weight"].grad *= 1e-4
    before = {name: parameter.grad.clone() for name, parameter in holder.items()}
    clip_adaptively(holder.values(), 0.05)
    for name, parameter in holder.items():
        ratio = parameter.grad.norm() / parameter.norm()
        if name in ("lm_head-weight", "model-layers-0-norm-weight"):
            torch.testing.assert_close(parameter.grad, before[name])
        else:
            assert ratio.item() == pytest.approx(0.05, rel=1e-4)


def test_the_average_follows_the_weights():
    """After each step it is decay times itself plus the rest of the new weights; the weights do not know of it."""
    averaging, plain = model(), model()
    average = averaging["lm_head-weight"].detach().clone()
    kept = Optimizers(named(averaging), TrainConfig(ema_decay=0.8))
    without = Optimizers(named(plain), TrainConfig())
    for step in range(3):
        for holder, optimizers in ((averaging, kept), (plain, without)):
            give_gradients(holder, step)
            optimizers.step(lr=0.05)
        average = 0.8 * average + 0.2 * averaging["lm_head-weight"].detach()
    torch.testing.assert_close(kept.state_dict()["lm_head.weight.ema"], average)
    torch.testing.assert_close(averaging["lm_head-weight"], plain["lm_head-weight"], rtol=0, atol=0)
    assert not any(name.endswith(".ema") for name in without.state_dict())


def test_forgotten_gradients_change_nothing():
    """A step left out leaves parameters, average and moments as they were."""
    holder = model()
    optimizers = Optimizers(named(holder), TrainConfig(ema_decay=0.8))
    give_gradients(holder, 0)
    optimizers.step(lr=0.05)
    before = {name: value.clone() for name, value in optimizers.state_dict().items()}
    give_gradients(holder, 1)
    optimizers.forget_gradients()
    assert all(parameter.grad is None for parameter in holder.values())
    torch.testing.assert_close(optimizers.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_is_allocated_anew(optimizer):
    """Moments and steps are zero, whatever a load that failed has left in them; parameters are as they were."""
    holder = model()
    optimizers = Optimizers(named(holder), TrainConfig(optimizer=optimizer))
    give_gradients(holder, 0)
    optimizers.step(lr=0.05)
    before = {name: whole(parameter) for name, parameter in named(holder)}
    optimizers.allocate()
    torch.testing.assert_close({name: whole(parameter) for name, parameter in named(holder)}, before, rtol=0, atol=0)
    assert not [name for name, value in optimizers.state_dict().items() if value.any()]


def main(folder):
    """Run one of several ranks."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    result = learn_in_all_ways(sharded)
    if rank == 0:
        torch.save(result, Path(folder) / "rank-0.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])


def test_a_routers_bias_moves_against_its_load():
    """Each step takes the speed from an expert with more tokens than the mean; its load is no part of the norm."""
    bias, other = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(2, 2))
    named = {"model.layers.0.mlp.gate.e_score_correction_bias": bias, "model.norm.weight": other}
    optimizers = Optimizers(named.items(), TrainConfig(router_bias_speed=0.5, weight_decay=0.0))
    optimizers.allocate()
    for _ in range(2):
        bias.grad, other.grad = torch.tensor([30.0, -10.0, 0.0, -20.0]), torch.zeros(2, 2)
        optimizers.step(lr=0.1)
    assert bias.tolist() == [-1.0, 1.0, 0.0, 1.0]
    assert optimizers.state_dict()["model.layers.0.mlp.gate.e_score_correction_bias.step"] == 2


def test_the_norm_of_a_large_gradient_is_as_exact_as_of_its_parts():
    """A million numbers have the norm that float64 gives, so that it does not depend on how ranks divide them."""
    parameter = torch.nn.Parameter(torch.empty(1000, 1000))
    parameter.grad = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
    exact = parameter.grad.double().square().sum().item()
    assert squared_norm([parameter]).item() == pytest.approx(exact, rel=1e-6)
