"""Accelerators and tasks in Slurm's configuration: compare them with the node, and with HyperPod's needs.

https://slurm.schedmd.com/gres.html
"""

from __future__ import annotations

import re

from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import slurm_conf
from podwright_bootstrap.slurm.own_part import OWN_PART
from podwright_bootstrap.slurm.slurm_conf import CGROUP_CONF, SCONTROL, SLURM_CONF

AUTO_RESUME_PLUGIN = "task/none"


def check_tasks(node: Node) -> None:
    """Warn where tasks are confined, which auto-resume cannot; without it, a confined job has its own GPUs alone.

    A log of its plugin refuses PrologFlags=Alloc too: https://github.com/awslabs/awsome-distributed-ai/pull/584
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-auto-resume.html

    Raises:
        BootstrapError: a job would see the GPUs of others.
    """
    plugins = slurm_conf.value("TaskPlugin", AUTO_RESUME_PLUGIN)
    if node.parameters.auto_resume:
        if plugins != AUTO_RESUME_PLUGIN:
            log.say(
                f"warning: {SLURM_CONF} says TaskPlugin={plugins}: HyperPod replaces nodes but cannot resume their "
                f"jobs, which Slurm requeues. TaskPlugin={AUTO_RESUME_PLUGIN} there changes that"
            )
        flags = slurm_conf.value("PrologFlags", slurm_conf.value("PrologFlags", ""), OWN_PART)
        if {"alloc", "contain"} & set(flags.lower().split(",")):  # Contain implies Alloc
            log.say(
                f"warning: PrologFlags={flags}: HyperPod replaces nodes but may not resume their jobs, which Slurm "
                "requeues. nodes.prolog and nodes.pam_slurm_adopt need the flags"
            )
    elif "task/cgroup" in plugins.split(",") and _has_gpus(node):
        constrained = slurm_conf.value("ConstrainDevices", "no", CGROUP_CONF)
        if constrained.lower() != "yes":
            raise BootstrapError(
                f"{CGROUP_CONF} says ConstrainDevices={constrained}: a job would see the GPUs of others",
                hint="write ConstrainDevices=yes there",
            )


def check_count(node: Node) -> None:
    """Check that Slurm counts as many GPUs as the instance type has.

    Raises:
        BootstrapError: it counts another number, or the node registered with fewer.
    """
    if node.facts.accelerator != "gpu":
        return
    shown = process.run(SCONTROL, "show", "node", "-o", node.hostname, timeout_s=30, quiet=True).output
    has = f"{node.instance_type} has {node.facts.accelerators_per_node} {node.facts.accelerator_name}"
    match = re.search(r"\bGres=(\S+)", shown)
    counts = re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", match[1] if match else "")
    if counts and sum(map(int, counts)) != node.facts.accelerators_per_node:
        raise BootstrapError(
            f"Slurm counts Gres={match[1] if match else ''} on {node.hostname}; {has}",
            hint=f"correct the node's Gres= in {SLURM_CONF} on the controller, then `scontrol reconfigure`",
        )
    complaint = re.search(r"Reason=(gres/gpu count[^\[]*)", shown)
    if complaint:
        raise BootstrapError(
            f"Slurm drains {node.hostname}: {complaint[1].strip()}; {has}",
            hint="nvidia-smi shows the driver's GPUs; gres.conf on the controller names a File= for each of them",
        )


def _has_gpus(node: Node) -> bool:
    return any(facts.accelerator == "gpu" for facts in node.parameters.instance_facts.values())
