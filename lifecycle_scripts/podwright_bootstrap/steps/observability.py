"""Metrics: node_exporter, our collectors beside it, and an agent that sends them to the cluster's workspace.

https://docs.aws.amazon.com/prometheus/latest/userguide/AMP-onboard-ingest-metrics-remote-write-EC2.html
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, network, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import installed_copy, metrics_service, programs
from podwright_bootstrap.software.metrics_service import ANSWER_LIMIT_S, DATA, TARGETS, USER, get
from podwright_bootstrap.steps import Step

EXPORTER_PORT = 9100  # node_exporter's own
AGENT_PORT = 9095
AGENT_CONFIG = contract.STATE_DIRECTORY / "prometheus.yml"
# Of node_exporter's: AWS counts every value that is sent.
HOST_COLLECTORS = ("cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "textfile", "uname", "vmstat")
# DCGM's metrics get the label of our own ones, so that they can be joined, and lose what says the same again.
SAME_LABELS = [
    {"source_labels": ["UUID"], "regex": "(.+)", "target_label": "uuid"},
    {"regex": "UUID|[Hh]ostname|device|pci_bus_id", "action": "labeldrop"},
]
EXPORTER, COLLECTORS, AGENT = (f"podwright-{name}" for name in ("node-exporter", "collectors", "prometheus-agent"))


class ObservabilityStep(Step):
    """This node measures itself, answers Prometheus, and sends its metrics to the workspace, if there is one."""

    name = "observability"
    audience = "clusters with metrics"
    hint = f"journalctl -u {EXPORTER} -u {COLLECTORS} -u {AGENT} says more"
    time_limit_s = 1800
    degraded_feature = "metrics"

    def applies(self, node: Node) -> bool:
        """Run with nodes.observability."""
        return node.parameters.nodes.observability is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Install the programs, then start them."""
        yield from metrics_service.make_user()
        _refuse_foreign(node)
        yield from _folders()
        updated = list(installed_copy.install())
        yield from updated
        yield from _service(EXPORTER, "Metrics of this host", _exporter(node), node=node)
        about = "Metrics of accelerators, EFA, Slurm and runs"
        command, capability = _collectors(node), "CAP_SYSLOG" if "kernel_log" in collectors_of(node) else ""
        yield from _service(COLLECTORS, about, command, node=node, capabilities=capability, restart=bool(updated))
        if node.parameters.prometheus_remote_write_url:
            changed = files.write_file(AGENT_CONFIG, agent_config(node))
            if changed:
                yield f"wrote {AGENT_CONFIG}"
            yield from _service(AGENT, "Sends metrics to the workspace", _agent(node), node=node, restart=changed)

    def remove(self, node: Node) -> Iterator[str]:
        """Stop sending and measuring."""
        yield from units.remove(*(f"{unit}.service" for unit in (AGENT, COLLECTORS, EXPORTER)))

    def verify(self, node: Node) -> None:
        """Check that the exporter serves our collectors' metrics and the agent is ready; AWS's side is not checked."""
        waits.wait_until(
            lambda: "podwright_collected_timestamp_seconds" in get(_exporter_url(node)),
            event=f"{_exporter_url(node)} to give our collectors' metrics",
            limit_s=ANSWER_LIMIT_S,
            hint=self.hint,
        )
        if node.parameters.prometheus_remote_write_url:
            ready = f"http://127.0.0.1:{AGENT_PORT}/-/ready"
            event = f"Prometheus's agent to be ready at {ready}"
            waits.wait_until(lambda: bool(get(ready)), event=event, limit_s=ANSWER_LIMIT_S, hint=self.hint)


def collectors_of(node: Node) -> list[str]:
    """The collectors that have something to measure on a node."""
    is_measurable = {
        "gpu": node.facts.accelerator == "gpu",
        "kernel_log": node.facts.accelerator == "gpu",
        "neuron": node.facts.accelerator == "neuron",
        "efa": node.facts.efa_interfaces > 0,
        "slurm": node.role == CONTROLLER,
        "training": node.role == CONTROLLER and node.has_shared,
    }
    return [name for name, has_data in is_measurable.items() if has_data]


def agent_config(node: Node) -> str:
    """Return the agent's targets and destination as JSON, which is valid YAML."""
    settings = node.parameters.nodes.observability
    interval = f"{settings.interval_s if settings else 30}s"
    labels = {"cluster": node.parameters.cluster_name, "instance_group": node.instance_group, "role": node.role}
    target = {"targets": [f"{node.address}:{EXPORTER_PORT}"], "labels": {"instance": node.hostname}}
    dcgm = {
        "job_name": "dcgm",
        "file_sd_configs": [{"files": [f"{TARGETS}/*.json"]}],
        "metric_relabel_configs": SAME_LABELS,
    }
    remote = {
        "url": node.parameters.prometheus_remote_write_url,
        "sigv4": {"region": node.parameters.region},  # Requests are signed with the role's credentials.
        "queue_config": {
            "max_samples_per_send": 1000,
            "max_shards": 2,
            "capacity": 2500,
        },  # This is enough for one node.
    }
    content = {
        "global": {"scrape_interval": interval, "external_labels": labels},
        "scrape_configs": [{"job_name": "node", "static_configs": [target]}, dcgm],
        "remote_write": [remote],
    }
    return json.dumps(content, indent=2) + "\n"


def _refuse_foreign(node: Node) -> None:
    """Another exporter would be taken for ours."""
    if units.answer("is-active", EXPORTER) == "active":
        return
    if not network.listens(node.address, EXPORTER_PORT):
        return
    sockets = process.run("ss", "-Hltnp", f"sport = :{EXPORTER_PORT}", timeout_s=30, check=False, quiet=True).output
    owner = ", ".join(re.findall(r'\("([^"]+)",pid=(\d+)', sockets)[0]) if "pid=" in sockets else "another program"
    raise BootstrapError(
        f"port {EXPORTER_PORT} is taken by {owner}",
        hint="stop and disable that exporter, or leave nodes.observability out of cluster.yaml",
    )


def _folders() -> Iterator[str]:
    for folder in (DATA, _textfiles(), DATA / "agent", TARGETS):
        if not folder.is_dir() or folder.owner() != USER:
            folder.mkdir(parents=True, exist_ok=True)
            process.run("chown", f"{USER}:", folder, timeout_s=30, quiet=True)
            yield f"made {folder}"


def _exporter(node: Node) -> str:
    collectors = " ".join(f"--collector.{name}" for name in HOST_COLLECTORS)
    return (
        f"{programs.install('node_exporter', node)} --web.listen-address={node.address}:{EXPORTER_PORT} "
        f"--collector.disable-defaults {collectors} --collector.textfile.directory={_textfiles()}"
    )


def _collectors(node: Node) -> str:
    settings = node.parameters.nodes.observability
    interval = settings.interval_s if settings else 30
    options = f"--interval {interval} --output {_textfiles()}"
    return f"{sys.executable} -m podwright_bootstrap.collectors {options} {' '.join(collectors_of(node))}".rstrip()


def _agent(node: Node) -> str:
    return (
        f"{programs.install('prometheus', node)} --agent --config.file={AGENT_CONFIG} "
        f"--storage.agent.path={DATA / 'agent'} --web.listen-address=127.0.0.1:{AGENT_PORT}"
    )


def _service(
    unit: str, description: str, command: str, *, node: Node, capabilities: str = "", restart: bool = False
) -> Iterator[str]:
    environment = f"PYTHONPATH={installed_copy.FOLDER} PODWRIGHT_RUNS={node.shared(contract.RUNS_DIRECTORY)}"
    yield from metrics_service.keep(
        unit, description, command, environment=environment, capabilities=capabilities, restart=restart
    )


def _textfiles() -> Path:
    return DATA / "textfile"


def _exporter_url(node: Node) -> str:
    return f"http://{node.address}:{EXPORTER_PORT}/metrics"
