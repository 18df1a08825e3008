"""The text of a new cluster.yaml: the answers of ``podwright init``, every other key at its default, and comments."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

CREATE, EXISTING_VPC, EXISTING = "create", "existing_vpc", "existing"
NETWORKS = (CREATE, EXISTING_VPC, EXISTING)
WIDTH = 92  # Comments wrap at this column.

_NETWORK = {
    CREATE: """\
  source: create                     # create | existing_vpc (new subnet in your VPC) | existing
  availability_zone_id: {zone}     # zone of your capacity: ask AWS or your training plan
""",
    EXISTING_VPC: """\
  source: existing_vpc               # a new private subnet in your VPC
  vpc_id: {vpc_id}
  availability_zone_id: {zone}     # zone of your capacity: ask AWS or your training plan
  private_subnet_cidr: {subnet_cidr} # free in the VPC
  nat_gateway_id: {nat_gateway_id} # the subnet's way to the internet
""",
    EXISTING: """\
  source: existing                   # `podwright explain network`: rules of the security group
  vpc_id: {vpc_id}
  subnet_ids:
    - {subnet_id}                    # private, in the zone of your capacity
  security_group_id: {security_group_id}
""",
}
_TEXT = """\
# One cluster. `podwright check` reports everything that is wrong with this file, with line and hint;
# `podwright explain` describes every key, its default and its limits.
name: {name}
region: {region}

network:
{network}
lustre:
  source: create                     # shared file system of all nodes, /fsx
  capacity_gib: 1200

bucket:
  source: create                     # for the nodes' scripts and the training program

role:
  source: create                     # IAM role of the nodes

cluster:
  instance_groups:
    - name: controller
      role: controller               # runs Slurm; jobs run on role: compute
      instance_type: {controller_type}
      count: 1
    - name: workers
      role: compute
{reason}      instance_type: {instance_type}
      count: {nodes}                       # `podwright scale workers N` changes it
      partition: gpu                 # for jobs: sbatch --partition=gpu

training:
  source: bundled                    # podwright-train on the nodes; `none` installs no trainer
"""


@dataclass(frozen=True)
class Answers:
    """The answers of a user. Those that the network does not need are empty."""

    name: str
    region: str
    instance_type: str
    nodes: str
    network: str
    zone: str = ""
    vpc_id: str = ""
    subnet_cidr: str = ""
    nat_gateway_id: str = ""
    subnet_id: str = ""
    security_group_id: str = ""
    controller_type: str = "ml.m5.xlarge"
    reason: str = ""

    def text(self) -> str:
        """Return the settings file."""
        reason = "".join(f"      # {line}\n" for line in wrap(self.reason, WIDTH))
        network = _NETWORK[self.network].format(**vars(self))
        return _TEXT.format(**vars(self) | {"network": network, "reason": reason})
