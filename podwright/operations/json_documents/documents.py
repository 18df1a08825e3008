"""The JSON documents of commands, as types: ``podwright schema COMMAND`` prints their JSON Schemas.

A document may get more keys; those here stay.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from podwright.operations.json_documents import operation_documents as operations
from podwright.operations.json_documents.base_document import Document, Finding
from podwright.planning.layout import Layout
from podwright_training.failures import Failures

DIALECT = "https://json-schema.org/draft/2020-12/schema"  # pydantic's


class Check(Document):
    """The document of `podwright check --json`."""

    findings: list[Finding]


class Doctor(Document):
    """The document of `podwright doctor --json`."""

    kind: Literal["podwright.doctor/1"] = Field(alias="schema")
    cluster: str
    account: str
    region: str
    findings: list[Finding]


class _Key(Document):
    """A key of cluster.yaml, run.yaml or job.yaml."""

    name: str
    source: str
    """The variant that has it, such as `create`; empty where all have."""
    values: str
    default: str
    description: str
    file: Literal["cluster.yaml", "run.yaml", "job.yaml"]


class Explain(Document):
    """The document of `podwright explain --json`: keys, codes with their meanings, or a file's cluster."""

    kind: Literal["podwright.explain/1"] = Field(alias="schema")
    keys: list[_Key] = Field(default_factory=list)
    codes: dict[str, str] = Field(default_factory=dict)
    file: str = ""
    """The settings file that was drawn."""
    written: str = ""
    """Where its picture is."""
    cluster: str = ""
    """Its cluster in words, where no picture was asked for."""


class _Model(Document):
    """The model that is trained."""

    name: str
    parameters: int
    active_parameters: int
    """Parameters that each token passes."""


class _Hardware(Document):
    """The nodes that train it."""

    instance_type: str
    nodes: int
    gpus: int


class _Memory(Document):
    """1e9 bytes per accelerator at the peak of a step."""

    parameters: float
    gradients: float
    master_weights: float
    optimizer: float
    gathered_parameters: float
    activations: float
    logits: float
    communication_and_context: float
    fragmentation: float
    peak: float
    """The sum of all above."""
    capacity: float
    headroom: float
    """Below zero where the run does not fit."""
    error: float
    """What the run may need beyond the peak: nine of ten published runs need no more."""


class _Speed(Document):
    """The time of a step and its parts."""

    step_s: float
    tokens_per_s_per_gpu: float
    low: float
    high: float
    """Nine of ten published runs have tokens/s per GPU from `low` to `high`."""
    model_flops_utilization: float
    hardware_flops_utilization: float
    parts: dict[str, float]
    """Seconds of a step."""
    bound_by: str


class _Cost(Document):
    """Time, dollars and energy of the whole run, failures included."""

    hours: float
    failures: Failures
    usd: dict[str, float]
    """By item; empty without a public price."""
    kwh: float
    price_note: str
    total_usd: float | None


class _MemoryCheckpoints(Document):
    """Checkpoints in the memory of the nodes."""

    rank_gb: float
    node_folder_gb: float
    node_gb: float
    node_memory_gb: float
    fits: bool
    node_sends_gb: float
    send_s: float
    pause_s: float
    freq_steps: int
    goodput: float


class Plan(Document):
    """The document of `podwright plan --json` for one cluster."""

    model: _Model
    cluster: _Hardware
    layout: Layout
    memory_gb: _Memory
    fits: bool
    largest_micro_batch: int
    """The largest that leaves room for `memory_gb.error`; 0 where none does."""
    speed: _Speed
    tokens: float | None
    cost: _Cost | None
    """null unless tokens were given."""
    checkpoint_freq_steps: int | None
    memory_checkpoints: _MemoryCheckpoints
    predicted_loss_nats_per_token: float | None
    command: list[str] | None
    """Words of the command that runs it; null if there are obstacles."""
    obstacles: list[str]


class Scale(Document):
    """The document of `podwright scale --json`."""

    kind: Literal["podwright.scale/1"] = Field(alias="schema")
    cluster: str
    group: str
    before: int
    after: int
    usd_per_hour_before: float | None
    usd_per_hour_after: float | None
    prices: str
    """Whose prices they are."""
    file: str | None
    """The settings file that was changed; null where AWS was."""
    line: int | None
    changes: list[dict[str, Any]] | None
    """Terraform's planned changes; null where nothing was deployed from this folder."""


DOCUMENTS: dict[str, type[BaseModel]] = {
    "adopt": operations.Adopt,
    "align": operations.Align,
    "bundle": operations.Bundle,
    "cancel": operations.Cancel,
    "check": Check,
    "deploy": operations.Deploy,
    "destroy": operations.Destroy,
    "doctor": Doctor,
    "drift": operations.Drift,
    "explain": Explain,
    "export": operations.Export,
    "fetch": operations.Fetch,
    "import": operations.Import,
    "init": operations.Init,
    "jobs": operations.Jobs,
    "logs": operations.Logs,
    "move": operations.Move,
    "nodes": operations.Nodes,
    "outputs": operations.Outputs,
    "plan": Plan,
    "policy": operations.Policy,
    "rehearse": operations.Rehearse,
    "scale": Scale,
    "setup": operations.Setup,
    "ssh-config": operations.SshConfig,
    "state": operations.State,
    "status": operations.Status,
    "submit": operations.Submit,
    "teardown": operations.Teardown,
    "update-software": operations.UpdateSoftware,
    "validate": operations.Validate,
}


def document_text(command: str) -> str:
    """Return the JSON Schema of a command's document as text."""
    schema = {"$schema": DIALECT, **DOCUMENTS[command].model_json_schema()}
    return json.dumps(_open(schema), indent=1) + "\n"


def _open(schema: Any) -> Any:
    """Return a schema that allows more keys, without titles that repeat them."""
    if isinstance(schema, list):
        return [_open(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    titled = isinstance(schema.get("title"), str)
    removed_keys = {"additionalProperties"} if schema.get("additionalProperties") is False else set()
    return {
        key: _open(value)
        for key, value in schema.items()
        if key not in removed_keys and not (titled and key == "title")
    }
