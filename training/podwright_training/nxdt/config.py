"""Write the files that NxD Training reads, with its keys.

https://awsdocs-neuron.readthedocs-hosted.com/en/latest/libraries/nxd-training/general/config_overview.html
"""

from __future__ import annotations

from typing import Any

from podwright_training.nxdt.plan import PRECISIONS, Plan


def nemo_config(plan: Plan) -> dict[str, Any]:
    """Return the content of NxD Training's YAML file."""
    config, layout = plan.config, plan.layout
    return {
        "name": "hf_llama",
        "model_source": "hf",
        "seed": config.seed,
        "trainer": _trainer(plan),
        "exp_manager": _experiment(plan),
        "distributed_strategy": {
            "tensor_model_parallel_size": layout.tensor,
            "pipeline_model_parallel_size": layout.pipeline,
            "virtual_pipeline_model_parallel_size": 1,
            "context_parallel_size": layout.context,
            "zero1": True,
            "sequence_parallel": True,
            "kv_replicator": layout.key_value_copies,
        },
        "data": {
            "micro_batch_size": config.train_batch_size,
            "global_batch_size": config.batch_sequences(layout.data),
            "train_dir": str(plan.dataset),
        },
        "model": _model(plan),
        "precision": {
            "type": PRECISIONS[config.compute_precision],
            "master_weights": False,  # NxD Training reads this and the following keys with type `manual` only.
            "fp32_grad_acc": False,
            "xla_use_bf16": "0",
            "xla_downcast_bf16": "0",
            "neuron_rt_stochastic_rounding_en": "0",
        },
        "compiler_flags": "--model-type transformer",
        "compiler_cache_url": plan.cache,
        "aync_exec_max_inflight_requests": 5,  # spelt so
        "bucket_size_collectives": 1024,
        "neuron_rt_exec_timeout": 100,
        "neuron_experimental_compress_rg": False,
    }


def model_config(plan: Plan) -> dict[str, Any]:
    """Return ``config.json`` as its transformers 4 reads it."""
    model = plan.config.model
    content = model.to_hf()
    rope, dtype = content.pop("rope_parameters"), content.pop("dtype")
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        **content,
        "torch_dtype": dtype,
        "rope_theta": model.rope_theta,
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
    }


def _trainer(plan: Plan) -> dict[str, Any]:
    steps = plan.config.max_steps
    return {
        "devices": plan.layout.ranks // plan.nodes,
        **({"lnc": 2} if plan.instance_type.startswith("ml.trn2") else {}),
        "num_nodes": plan.nodes,
        "max_epochs": -1,
        "max_steps": steps,
        "log_every_n_steps": plan.config.logging_freq,
        "val_check_interval": steps + 1,  # beyond the last step: no validation
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0.0,
        "limit_test_batches": 0.0,
        "gradient_clip_val": plan.config.grad_clip,
    }


def _experiment(plan: Plan) -> dict[str, Any]:
    every = plan.config.checkpoint_freq or plan.config.max_steps
    return {
        "log_local_rank_0_only": True,
        "create_tensorboard_logger": True,
        "explicit_log_dir": str(plan.folder / "results"),  # the same for every job, so that each resumes
        "exp_dir": None,
        "name": "hf_llama",
        "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True,
        "create_checkpoint_callback": True,
        "checkpoint_callback_params": {
            "monitor": "step",
            "save_top_k": 1,
            "mode": "max",
            "save_last": False,
            "filename": f"{plan.name}--{{step}}-{{consumed_samples}}",
            "model_parallel_size": plan.layout.tensor * plan.layout.pipeline,
            "every_n_train_steps": every,
            "use_master_weights_in_ckpt": False,
        },
        "log_parameter_norm": True,
        "log_gradient_norm": True,
        "enable_recovery_time_instrumentation": False,
        "save_xser": True,
        "load_xser": True,
        "save_bf16": False,
        "async_checkpointing": False,
        "resume_from_checkpoint": None,
    }


def _model(plan: Plan) -> dict[str, Any]:
    config, model = plan.config, plan.config.model
    full = config.activation_checkpointing and config.activation_checkpointing_mode == "full"
    return {
        "model_config": str(plan.folder / "config.json"),
        "encoder_seq_length": config.max_context_width,
        "max_position_embeddings": model.max_position_embeddings,
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "qkv_linear": plan.layout.key_value_copies > 1,
        "fuse_qkv": True,
        "rope_theta": model.rope_theta,
        "use_cpu_initialization": True,
        "activations_checkpoint_granularity": ("full" if full else "selective") if _recomputes(plan) else None,
        **({"activations_checkpoint_recompute": ["CoreAttention"]} if _recomputes(plan) and not full else {}),
        "fusions": {"softmax": True, "flash_attention": True},
        "do_layer_norm_weight_decay": True,
        "optim": {
            "name": "adamw_fp32OptState",
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "capturable": False,
            "betas": [config.beta1, config.beta2],
            "sched": {
                "name": "LinearAnnealingWithWarmUp",
                "warmup_steps": round(config.warmup * config.max_steps),
                "max_steps": config.max_steps,
            },
        },
    }


def _recomputes(plan: Plan) -> bool:
    return plan.config.activation_checkpointing
