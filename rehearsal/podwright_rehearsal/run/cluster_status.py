"""The cluster's part of the summary: the output of Slurm's commands, and the slowest host of each boot step."""

from __future__ import annotations

from collections.abc import Mapping

from podwright_rehearsal.clusters.rehearsed import RehearsedCluster

ACCOUNTS = "AccountingStorageType = accounting_storage/slurmdbd"  # scontrol show config


def ask_slurm(cluster: RehearsedCluster, job_id: int | None, *, partition: str) -> dict[str, str]:
    """Return output by command: sinfo, srun hostname on all nodes of the partition, sacct with accounting."""
    nodes = cluster.run(f"sinfo --noheader --partition={partition} --format=%D").stdout.split()
    srun = f"srun --partition={partition} --nodes={sum(map(int, nodes))} --ntasks-per-node=1 hostname"
    outputs = {
        "sinfo": cluster.run("sinfo").stdout,
        "srun hostname": " ".join(sorted(cluster.run(srun).stdout.split())),
    }
    if ACCOUNTS in " ".join(
        cluster.run("scontrol show config | grep ^AccountingStorageType", check=False).stdout.split()
    ):
        columns = "JobID,JobName,State,NNodes,Elapsed,ExitCode"
        jobs = f"--jobs={job_id} " if job_id is not None else ""
        outputs["sacct"] = cluster.run(f"sacct {jobs}--duplicates --format={columns}").stdout
    return {name: text.rstrip() for name, text in outputs.items()}


def slowest_boot_steps(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """Return a line per step with its slowest host, from seconds by host and step."""
    steps = list(dict.fromkeys(step for boot in seconds.values() for step in boot))
    lines = []
    for step in steps:
        slowest, host = max((boot[step], host) for host, boot in seconds.items() if step in boot)
        lines.append(f"{step:<15} {slowest:6.1f} s  {host}")
    return "\n".join(lines)
