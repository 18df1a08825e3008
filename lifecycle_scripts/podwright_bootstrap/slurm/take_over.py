"""A message when another controller takes over: a program that slurmctld runs, and the topic that takes the message.

https://slurm.schedmd.com/slurm.conf.html#OPT_SlurmctldPrimaryOnProg
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.host import files
from podwright_bootstrap.slurm import slurm_conf

PROGRAM = contract.STATE_DIRECTORY / "controller_took_over.sh"
LAST = "podwright-controller"  # in the folder of Slurm's state, which controllers share
# slurmctld runs it at each start. Only another controller than the last one is news.
SCRIPT = """\
#!/bin/bash
# Written by podwright. slurmctld runs this when it takes control of the cluster.
last={last} host=$(hostname)
before=$(cat "$last" 2>/dev/null)
echo "$host" >"$last"
if [[ -z $before || $before == "$host" ]]; then
  exit
fi
exec timeout 60 {aws} sns publish --region {region} --topic-arn {topic} --subject {subject} \\
  --message "$host controls Slurm now, in place of $before. Running jobs go on. To see why: \
podwright doctor --cluster {cluster}"
"""


def settings(parameters: ProvisioningParameters) -> Dict[str, str]:
    """Return the keys of slurm.conf; empty without a topic."""
    return {"SlurmctldPrimaryOnProg": str(PROGRAM)} if topic(parameters) else {}


def topic(parameters: ProvisioningParameters) -> str:
    """Return the topic's ARN; "" without notices or with one controller."""
    return (parameters.multi_head.slurm_sns_arn or "") if parameters.multi_head else ""


def install(parameters: ProvisioningParameters) -> Iterator[str]:
    """Write the program, before slurm.conf names it."""
    if not topic(parameters):
        return
    words = {
        "last": str(Path(slurm_conf.value("StateSaveLocation", "/var/spool/slurmctld")) / LAST),
        "aws": shutil.which("aws") or "aws",
        "region": parameters.region,
        "topic": topic(parameters),
        "subject": f"{parameters.cluster_name}: another controller took over",
        "cluster": parameters.cluster_name,
    }
    text = SCRIPT.format(**{name: shlex.quote(word) for name, word in words.items()})
    if files.write_file(PROGRAM, text, mode=0o755):
        yield f"wrote {PROGRAM}"
