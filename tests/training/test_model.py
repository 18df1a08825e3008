"""Our models are the published ones: equal to transformers', and rightly initialised."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from podwright_training.batch import IGNORED
from podwright_training.config.architecture import ModelConfig, RopeScaling
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import (
    Block,
    LlamaForCausalLM,
    Recomputation,
    configure,
    experts,
    from_hugging_face,
    kept_in_bf16,
)
from podwright_training.model.float8 import Float8Linear, use_float8

VOCAB = 97
LLAMA_2 = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rope_theta": 1e4,
}
EXPERTS = {
    "model_type": "mixtral",
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "router_aux_loss_coef": 0.5,
}
SHARED = {"model_type": "glm4_moe", "num_key_value_heads": 2, "num_local_experts": 4, "n_shared_experts": 2}
FAMILIES = {
    "llama 2": {},
    "llama 3.1": {
        "num_key_value_heads": 2,
        "rope_theta": 5e5,
        "rope_scaling": RopeScaling(factor=8.0, original_max_position_embeddings=32),
    },
    "llama 3.2": {
        "num_key_value_heads": 1,
        "rope_scaling": RopeScaling(factor=32.0, original_max_position_embeddings=16),
        "tie_word_embeddings": True,
    },
    "wide heads": {"head_dim": 24},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 20},
    "mathstral": {"model_type": "mistral", "num_key_value_heads": 2, "rope_theta": 1e6},
    "mixtral": {**EXPERTS, "num_hidden_layers": 1},  # one block: see MixtureOfExperts
    "glm4 moe": {**SHARED, "qk_norm": True},
    "qwen3 moe": {**EXPERTS, "model_type": "qwen3_moe", "qk_norm": True, "num_hidden_layers": 1},
    "qk norm": {"model_type": "qwen3", "qk_norm": True, "num_key_value_heads": 2},
}
MEMORY = {
    "kept": None,
    "recomputed": Recomputation(),
    "recomputed selectively": Recomputation(mode="selective"),
    "offloaded": Recomputation(offload=True),
}
TOKENS = torch.randint(0, VOCAB, (2, 101), generator=torch.Generator().manual_seed(0))


def build(config):
    """The model as the trainer builds it: meta device, memory, initial values."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(math.nan)  # what to_empty leaves may be anything
    model.init_weights(seed=1)
    return model


def peer(ours):
    """Transformers' model with the same weights, its configuration read from ours."""
    content = ours.config.to_hf()
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**content), attn_implementation="eager")
    absent = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert absent.missing_keys == (["lm_head.weight"] if ours.config.tie_word_embeddings else [])
    assert absent.unexpected_keys == []
    theirs.tie_weights()
    return theirs


@pytest.fixture(scope="module", params=FAMILIES)
def expected(request):
    """A family's configuration, and transformers' logits and gradients of the mean loss with our initial weights."""
    config = ModelConfig(**{**LLAMA_2, **FAMILIES[request.param]})
    theirs = peer(build(config))
    routed = {"output_router_logits": True} if config.router_aux_loss_coef else {}
    output = theirs(input_ids=TOKENS[:, :-1], **routed)
    loss = F.cross_entropy(output.logits.flatten(0, 1), TOKENS[:, 1:].flatten())
    (loss + config.router_aux_loss_coef * (getattr(output, "aux_loss", None) or 0)).backward()
    return config, output.logits, {name: parameter.grad for name, parameter in theirs.named_parameters()}


@pytest.mark.parametrize("memory", MEMORY)
def test_logits_and_gradients_are_those_of_transformers(expected, memory):
    """Forward and backward agree to 1e-5 in fp32, whichever way activations are kept."""
    config, expected_logits, expected_gradients = expected
    model = build(config)
    for block in model.model.layers:
        block.recomputation = MEMORY[memory]
    torch.testing.assert_close(model(TOKENS[:, :-1]), expected_logits, atol=1e-5, rtol=0)
    model.weigh_loss(1 / 200)
    (model(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:]) / 200).backward()
    for name, parameter in model.named_parameters():
        if not experts.is_router_bias(name):
            torch.testing.assert_close(parameter.grad, expected_gradients[name], atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("chunk_tokens", [0, 16])
def test_an_evaluation_is_of_cross_entropy_alone(chunk_tokens):
    """The loss with a gradient has ``z_loss`` too, the loss without one is that of transformers."""
    model = build(ModelConfig(**LLAMA_2))
    configure(model, TrainConfig(z_loss=0.1, loss_chunk_tokens=chunk_tokens), "cpu")
    logits, labels = peer(model)(input_ids=TOKENS[:, :-1]).logits.flatten(0, 1), TOKENS[:, 1:]
    plain = F.cross_entropy(logits, labels.flatten(), reduction="sum")
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS[:, :-1], labels_BT=labels), plain)
    learned = plain + 0.1 * logits.logsumexp(dim=-1).square().sum()
    torch.testing.assert_close(model(TOKENS[:, :-1], labels_BT=labels), learned)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_model_knows_nothing(family):
    """Built on the meta device, its loss is ln(vocabulary) ± 0.1 even where a plain 0.02 would give more."""
    shape = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 256, "num_hidden_layers": 1}
    model = build(ModelConfig(**{**LLAMA_2, **FAMILIES[family], **shape}))
    tokens = torch.randint(0, 4096, (4, 65), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = model(tokens[:, :-1], labels_BT=tokens[:, 1:]).item() / 256
    assert abs(loss - math.log(4096)) < 0.1


def test_position_frequencies_survive_to_empty():
    """``init_weights`` gives the buffer that no checkpoint holds the values of transformers."""
    ours = build(ModelConfig(**{**LLAMA_2, **FAMILIES["llama 3.1"]}))
    torch.testing.assert_close(ours.model.rotary_emb.inv_freq, peer(ours).model.rotary_emb.inv_freq, atol=0, rtol=1e-6)


def test_a_model_in_bf16_has_exact_angles():
    """Cast as a whole, a model keeps its frequencies, and its cosines are fp32's, rounded once."""
    exact = build(ModelConfig(**{**LLAMA_2, **FAMILIES["llama 3.1"]})).model.rotary_emb
    cast = build(ModelConfig(**{**LLAMA_2, **FAMILIES["llama 3.1"]})).to(torch.bfloat16).model.rotary_emb
    cast.reset()
    positions = torch.arange(4096)
    torch.testing.assert_close(cast(positions, torch.bfloat16), exact(positions, torch.bfloat16), atol=0, rtol=0)


@pytest.mark.parametrize("family", ["llama 3.1", "mistral", "mixtral"])
def test_packed_documents_are_as_if_alone(family):
    """With positions that restart, a document's loss is the one it has by itself."""
    model = build(ModelConfig(**{**LLAMA_2, **FAMILIES[family]}))
    lengths = torch.tensor([70, 1, 29])
    positions = torch.cat([torch.arange(length) for length in lengths])
    tokens, labels = TOKENS[:1, :-1], TOKENS[:1, 1:]
    for tokens_D, labels_D, number in zip(
        tokens.split(lengths.tolist(), 1), labels.split(lengths.tolist(), 1), range(3), strict=True
    ):
        of_document = torch.repeat_interleave(torch.arange(3), lengths) == number
        packed = model(tokens, labels_BT=labels.masked_fill(~of_document, IGNORED), positions_BT=positions.unsqueeze(0))
        torch.testing.assert_close(packed, model(tokens_D, labels_BT=labels_D), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_compiled_blocks_compute_the_same():
    """torch.compile of each block changes neither loss nor names of parameters."""
    model = build(ModelConfig(**{**LLAMA_2, **FAMILIES["llama 3.1"], "num_hidden_layers": 1}))
    plain, names = model(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:]), [name for name, _ in model.named_parameters()]
    for block in model.model.layers:
        block.compile(backend="aot_eager")
    torch.testing.assert_close(model(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:]), plain, atol=1e-3, rtol=0)
    assert [name for name, _ in model.named_parameters()] == names


def test_a_compiled_block_keeps_what_its_budget_allows():
    """A smaller share keeps fewer bytes until backward, and gradients stay the same."""
    kept, gradients = {}, {}
    for budget in (1.0, 0.5, 0.0):
        torch._dynamo.reset()
        model = build(ModelConfig(**{**LLAMA_2, "num_hidden_layers": 1}))
        configure(model, TrainConfig(activation_checkpointing_mode="budget", activation_memory_budget=budget), "cpu")
        model.model.layers[0].compile(backend="aot_eager_decomp_partition")
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(partial(keep, sizes), lambda item: item):
            hidden = model.model(TOKENS[:, :-1])
        hidden.square().sum().backward()
        kept[budget], gradients[budget] = sum(sizes.values()), model.model.embed_tokens.weight.grad
    assert kept[0.0] < kept[0.5] < kept[1.0]
    assert torch.equal(gradients[0.0], gradients[1.0])


def keep(sizes, tensor):
    sizes[tensor.data_ptr()] = tensor.nbytes
    return tensor


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mode"), [("llama 3.1", "full"), ("qk norm", "selective"), ("mixtral", "full")])
def test_a_gpu_compiles_blocks_whole(family, mode, monkeypatch):
    """Dense blocks and mixtures have no graph break on the path that GPUs take."""
    monkeypatch.setattr(experts, "GPUS", ("meta",))
    with torch.device("meta"):
        block = Block(ModelConfig(**{**LLAMA_2, **FAMILIES[family]})).to(torch.bfloat16)
        x_BTD, angle_T1H = torch.empty(2, 64, 64), torch.empty(64, 1, 16)
    block.recomputation = Recomputation(mode=mode)
    block.compile(backend="eager", fullgraph=True)  # a break would be an error
    x_BTD = x_BTD.bfloat16().requires_grad_()
    assert block(x_BTD, angle_T1H.bfloat16(), angle_T1H.bfloat16(), None).shape == x_BTD.shape


@pytest.mark.parametrize("family", ["llama 3.2", "mistral", "mixtral", "glm4 moe", "qwen3 moe", "qk norm"])
def test_what_is_exported_is_loaded_by_transformers(family, tmp_path):
    """With the names of ``from_hugging_face`` and ``to_hf``, transformers gives our logits, and misses nothing."""
    model = build(ModelConfig(**{**LLAMA_2, **FAMILIES[family]}))
    weights = {}
    for name, value in model.named_parameters():
        for part in from_hugging_face(name, value.shape, model_type=model.config.model_type):
            box = tuple(slice(start, start + size) for start, size in zip(part.begin, part.shape, strict=True))
            weights[part.name] = value.detach()[box].reshape(part.shape[-2:]).contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_hf()))
    theirs, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=TOKENS).logits, model(TOKENS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_config_json_is_read_back_the_same(family):
    """The library knows each key of ``to_hf``: it keeps none as an extra attribute, but GLM's ``head_dim``."""
    content = ModelConfig(**{**LLAMA_2, **FAMILIES[family]}).to_hf()
    read = AutoConfig.for_model(**content)
    assert {key: read.to_dict()[key] for key in content} == content
    assert set(content) <= set(type(read)().to_dict()) | {"architectures", "dtype", "head_dim"}


def test_a_bias_chooses_experts_and_does_not_mix_them():
    """Transformers gives the same with the same bias; its gradient is each expert's tokens above the mean."""
    model = build(ModelConfig(**{**LLAMA_2, **SHARED}))
    for block in model.model.layers:
        block.mlp.gate.e_score_correction_bias.data = torch.tensor([0.3, 0.0, -0.2, 0.01])
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), peer(model)(input_ids=TOKENS).logits, atol=1e-5, rtol=0)
    chosen = []
    model.model.layers[0].mlp.gate.register_forward_hook(lambda _gate, _input, output: chosen.append(output[2]))
    model(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:]).backward()
    excess = torch.bincount(chosen[0].flatten(), minlength=4) - 200 * 2 / 4
    assert torch.equal(model.model.layers[0].mlp.gate.e_score_correction_bias.grad, excess)


def test_each_block_balances_its_own_experts():
    """The gradient is that of the cross-entropy plus coefficient · tokens · the mean of the blocks' losses."""
    config = ModelConfig(**{**LLAMA_2, **EXPERTS})
    model, plain = build(config), build(replace(config, router_aux_loss_coef=0.0))
    routed = []
    for block in plain.model.layers:
        block.mlp.gate.register_forward_hook(lambda _gate, _input, output: routed.append(output))
    loss = plain(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:])
    balance = [load_balancing_loss_func((probability.log(),), 4, 2) for probability, _, _ in routed]
    (loss + 0.5 * 200 * torch.stack(balance).mean()).backward()
    model(TOKENS[:, :-1], labels_BT=TOKENS[:, 1:]).backward()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, None),
        ({"intermediate_size": 1000}, "mlp.gate_proj, mlp.up_proj, mlp.down_proj: sizes are not multiples of 16 x"),
        ({"num_key_value_heads": 2, "tensor_parallel": 2, "head_dim": 24}, "each block, self_attn.k_proj, self_attn."),
        ({"model_type": "mixtral", "num_local_experts": 4}, "in each block, mlp.experts: routed experts are not"),
    ],
)
def test_what_float8_leaves_in_bf16_is_said(options, left):
    """A warning names the experts of a mixture, and layers whose sizes its kernels do not take."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_heads": 8, "num_key_value_heads": 4, "num_layers": 3}
    hint = kept_in_bf16(TrainConfig(**{**shape, "float8": True, **options}))
    assert (hint is None) == (left is None)
    assert left is None or left in hint


@pytest.mark.slow
def test_float8_rounds_two_of_three_products_and_runs_compiled():
    """With a scale per row, output and input's gradient are within 5 %, the weight's is bf16's; 24 rows stay bf16."""
    layers = torch.nn.ModuleList(torch.nn.Linear(64, rows, bias=False, dtype=torch.bfloat16) for rows in (48, 24))
    use_float8(layers)
    assert [type(layer) for layer in layers] == [Float8Linear, torch.nn.Linear]
    x, gradient = (
        torch.randn(4, 7, size, generator=torch.Generator().manual_seed(size)).bfloat16() for size in (64, 48)
    )
    x[0, 0] *= 1000  # an outlier spoils its own row alone
    x.requires_grad_()
    y = layers[0](x)
    y.backward(gradient)
    weight = layers[0].weight
    wanted = {
        "y": (y[1:], x[1:].float() @ weight.float().t(), 0.05),
        "x": (x.grad, gradient.float() @ weight.float(), 0.05),
        "weight": (weight.grad, gradient.float().flatten(0, 1).t() @ x.float().flatten(0, 1), 0.004),
    }
    for name, (found, exact, error) in wanted.items():
        assert (found.float() - exact).norm() < error * exact.norm(), name
    assert torch.equal(torch.compile(layers[0], backend="aot_eager", fullgraph=True)(x), y)


def test_a_backward_pass_in_parts_recomputes_a_block_once():
    """The gradient of the input, then that of each weight, are those of a whole backward pass."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    class Part(torch.nn.Sequential):
        calls = 0

        def forward(self, x):
            return Recomputation(in_parts=True)(self._forward, x)

        def _forward(self, x):
            self.calls += 1
            return x + super().forward(x)

    torch.manual_seed(0)
    norm, up, down = torch.nn.RMSNorm(8), torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)
    part = Part(norm, up, torch.nn.SiLU(), down)
    weights = list(part.parameters())
    x = torch.randn(4, 8, requires_grad=True)
    y = part(x)
    expected = torch.autograd.grad(x + down(torch.nn.functional.silu(up(norm(x)))), [x, *weights], torch.ones(4, 8))
    (of_input,), groups = stage_backward_input([y], [torch.ones(4, 8)], [x], iter(weights))
    stage_backward_weight(iter(weights), groups)
    assert part.calls == 2
    for found, right in zip([of_input, *(weight.grad for weight in weights)], expected, strict=True):
        torch.testing.assert_close(found, right)
