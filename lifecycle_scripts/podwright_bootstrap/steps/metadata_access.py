"""Access to the instance's metadata service, which gives a program the rights of the node's role.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html, "Limiting access"
https://wiki.nftables.org/wiki-nftables/index.php/Matching_packet_metainformation
"""

from __future__ import annotations

import pwd
import shutil
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap import contract
from podwright_bootstrap.aws import instance_metadata
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, identity, log, process, units
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import slurm_conf, take_over
from podwright_bootstrap.software.metrics_service import USER as METRICS_USER
from podwright_bootstrap.steps import Step

RULES = contract.STATE_DIRECTORY / "metadata.nft"
UNIT = "podwright-metadata-access.service"
ROLE = "iam/security-credentials/"  # The service lists the node's role below this path.
AGENTS = (METRICS_USER, "cwagent", "aoc")  # ours, CloudWatch's and AWS's distribution of OpenTelemetry
TABLE = ("inet", "podwright_metadata")


class MetadataAccessStep(Step):
    """Only root and the users named for it reach the instance's metadata service; containers do not."""

    name = "metadata_access"
    audience = "all nodes; with nodes.metadata_access.everybody, controllers"
    hint = f"nft --check --file {RULES} says which line the kernel refuses"
    time_limit_s = 300

    def applies(self, node: Node) -> bool:
        """Run on all nodes, unless cluster.yaml gives the role to everybody: controllers may read secrets."""
        setting = node.parameters.nodes.metadata_access
        return node.role == CONTROLLER or setting is None or not setting.everybody

    def apply(self, node: Node) -> Iterator[str]:
        """Load the rules now and after every reboot; an image without nftables is a warning."""
        nft = shutil.which("nft")
        if not nft:
            log.say("warning: every user can read the instance's metadata: this image lacks nft (package nftables)")
            return
        rules = files.write_file(RULES, _rules(_allowed(node)))
        if rules:
            yield f"wrote {RULES}"
        try:
            yield from _restrict(nft, changed=rules)
        except CommandError as error:
            if _is_asked_for(node):
                raise
            log.say(f"warning: every user can read the instance's metadata: {error}. {self.hint}")

    def remove(self, node: Node) -> Iterator[str]:
        """Let all users reach the metadata service again."""
        yield from _let_everybody_in()

    def verify(self, node: Node) -> None:
        """The kernel has the table."""
        if not shutil.which("nft") or not _is_asked_for(node):
            return
        if process.run("nft", "list", "table", *TABLE, timeout_s=30, check=False).exit_code:
            raise CommandError(f"the kernel has no table {' '.join(TABLE)}")


def _restrict(nft: str, *, changed: bool) -> Iterator[str]:
    """Load the rules; take them back if they take the role from root, as by rejecting an agent that the image has.

    Raises:
        CommandError: the kernel refuses the rules, or they were taken back.
    """
    role = instance_metadata.read(ROLE) if changed else None
    yield from units.run_at_boot(UNIT, _unit(nft), rerun=changed)
    if role and not instance_metadata.read(ROLE):
        yield from _let_everybody_in()
        raise CommandError("with the rules root's programs have lost the node's role")


def _let_everybody_in() -> Iterator[str]:
    removed = list(units.remove(UNIT))
    if removed and shutil.which("nft"):
        process.run("nft", "delete", "table", *TABLE, timeout_s=30, check=False)
    yield from removed
    yield from files.remove_files(RULES)


def _is_asked_for(node: Node) -> bool:
    return node.parameters.nodes.metadata_access is not None


def _allowed(node: Node) -> List[int]:
    """Return the allowed user ids: root, agents that send metrics, a slurmctld that notifies, people.

    People are cluster.yaml's users; without the section the job user, whose jobs read and write S3, and nobody on
    controllers.
    """
    setting = node.parameters.nodes.metadata_access
    usual = () if node.role == CONTROLLER else (contract.JOB_USER,)
    people = [identity.find_user(name).pw_uid for name in (usual if setting is None else setting.users)]
    agents = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in AGENTS]
    notifies = node.role == CONTROLLER and take_over.topic(node.parameters)
    slurm = [identity.find_user(slurm_conf.value("SlurmUser", "root")).pw_uid] if notifies else []
    return sorted({0, *agents, *slurm, *people})


def _rules(allowed: List[int]) -> str:
    """Return nft's table: packets of this host are filtered by user, forwarded ones of containers are rejected."""
    table, ids = " ".join(TABLE), ", ".join(map(str, allowed))
    return f"""# Written by podwright's bootstrap.
table {table}
delete table {table}
table {table} {{
  chain output {{
    type filter hook output priority filter; policy accept;
    ip daddr 169.254.169.254 meta skuid != {{ {ids} }} reject with icmp type admin-prohibited
    ip6 daddr fd00:ec2::254 meta skuid != {{ {ids} }} reject with icmpv6 type admin-prohibited
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ip daddr 169.254.169.254 reject with icmp type admin-prohibited
    ip6 daddr fd00:ec2::254 reject with icmpv6 type admin-prohibited
  }}
}}
"""


def _unit(nft: str) -> str:
    return (
        "[Unit]\nDescription=Metadata of the instance for root alone\nDefaultDependencies=no\n"
        f"Before=network-pre.target\nWants=network-pre.target\nRequiresMountsFor={Path(RULES).parent}\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={nft} --file {RULES}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
