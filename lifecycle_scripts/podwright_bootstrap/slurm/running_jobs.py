"""Publish the number of running jobs as a CloudWatch metric, with the node's role: ``running_jobs CLUSTER REGION``.

Nothing is published while Slurm has no compute node that is up: a cluster that is scaled to 0 is not idle.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html
"""

from __future__ import annotations

import subprocess
import sys
from typing import List, Optional

from podwright_bootstrap import contract

LIMIT_S = 60
# Of a node's state without its marks: https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
NOT_UP = {"down", "fail", "failing", "unknown", "future", "planned", "powered_down", "powering_down"}


def main() -> int:
    """Publish once; a Slurm or an AWS that does not answer ends it with 1 and its last line."""
    cluster_name, region = sys.argv[1:]
    try:
        count = running_jobs()
        if count is not None:
            _ask(*put_metric_data(cluster_name, region, count))
    except (OSError, subprocess.SubprocessError) as error:
        message = getattr(error, "stderr", None) or str(error)
        print((message.strip().splitlines() or ["no output"])[-1], file=sys.stderr)
        return 1
    return 0


def running_jobs() -> Optional[int]:
    """Return the number of running jobs, or None while no compute node is up."""
    states = _ask("sinfo", "--noheader", "--Node", "--format=%T").split()
    up = [state for state in states if not state.endswith("*") and state.rstrip("~#!%$@^-") not in NOT_UP]
    if not up:
        return None
    return len(_ask("squeue", "--noheader", "--states=running", "--format=%i").split())


def put_metric_data(cluster_name: str, region: str, count: int) -> List[str]:
    """Return the AWS CLI's command that publishes the number."""
    return [
        *("aws", "cloudwatch", "put-metric-data", "--region", region),
        *("--namespace", contract.METRICS_NAMESPACE, "--metric-name", contract.RUNNING_JOBS_METRIC),
        *("--dimensions", f"{contract.CLUSTER_DIMENSION}={cluster_name}", "--unit", "Count", "--value", str(count)),
    ]


def _ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
