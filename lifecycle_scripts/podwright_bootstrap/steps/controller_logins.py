"""Allow ssh to controllers to root and administrators: the controllers' role may read the cluster's secrets.

https://man.openbsd.org/sshd_config, "Match"
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Sequence

from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.features import ControllerLogins as Settings
from podwright_bootstrap.host import files, sshd
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

SSHD = Path("/etc/ssh/sshd_config")
OUR_PART = Path("/etc/ssh/sshd_config.d/podwright-controllers.conf")
INCLUDE = f"Include {OUR_PART.parent}/*.conf"  # Debian's and Ubuntu's own line
STRANGER = "nobody"  # a user of every image, who is no administrator
DENIED = "denyusers *"


class ControllerLoginsStep(Step):
    """On controllers sshd lets root and administrators in alone; other users have login nodes."""

    name = "controller_logins"
    audience = "controllers of clusters with login nodes, unless everybody may log in"
    hint = f"sshd -t shows the problem of {OUR_PART}"
    time_limit_s = 120
    degraded_feature = "proof that only administrators may log in to this controller"

    def applies(self, node: Node) -> bool:
        """Run on controllers where users have login nodes; cluster.yaml may say otherwise."""
        return node.role == CONTROLLER and not _is_for_everybody(node)

    def apply(self, node: Node) -> Iterator[str]:
        """Write a part of sshd's configuration, and remove it if sshd rejects it: sshd would not start again."""
        admins, groups = ("root", *_settings(node).admins), _groups(node)
        changes = [f"wrote {OUR_PART}"] if files.write_file(OUR_PART, _rule(admins, groups)) else []
        if INCLUDE not in _lines(SSHD):
            files.write_file(SSHD, f"{INCLUDE}\n{_text(SSHD)}")  # A Match block above would swallow it.
            changes.append(f"included {OUR_PART.parent} in {SSHD}")
        _refuse_bad_rule()
        sshd.reload()  # Always: an earlier boot may have failed between the file and this.
        yield from changes

    def remove(self, node: Node) -> Iterator[str]:
        """Let every user in again."""
        changes = list(files.remove_files(OUR_PART))
        if changes:
            sshd.reload()
        yield from changes

    def verify(self, node: Node) -> None:
        """Check that sshd denies the user ``nobody`` and admits root."""
        if DENIED not in sshd.settings(STRANGER):
            raise BootstrapError("sshd lets every user in", hint=f"move {INCLUDE} to the top of {SSHD}")
        if DENIED in sshd.settings("root"):
            raise BootstrapError("sshd does not let root in", hint=f"look at DenyUsers in {SSHD} and {OUR_PART.parent}")


def _is_for_everybody(node: Node) -> bool:
    everybody = _settings(node).everybody
    return not node.parameters.login_groups if everybody is None else everybody


def _settings(node: Node) -> Settings:
    return node.parameters.nodes.controller_logins or Settings()


def _groups(node: Node) -> Sequence[str]:
    """Return the groups of the directory whose members become root anyway."""
    ldap = node.parameters.nodes.ldap
    return ldap.sudo_groups if ldap else ()


def _rule(admins: Sequence[str], groups: Sequence[str]) -> str:
    """Return a block for all other users; the last line ends it, also where the file is included."""
    users, group_pattern = _all_but(admins), f' Group "{_all_but(groups)}"' if groups else ""
    return f'# Written by podwright.\nMatch User "{users}"{group_pattern}\n  DenyUsers *\nMatch all\n'


def _all_but(names: Sequence[str]) -> str:
    return ",".join(["*", *(f"!{name}" for name in names)])


def _refuse_bad_rule() -> None:
    """Remove our part if it is what sshd rejects; it stays where sshd fails for another reason.

    Raises:
        CommandError: sshd does not accept its configuration.
    """
    try:
        sshd.check()
    except CommandError:
        part = OUR_PART.read_text()
        OUR_PART.unlink()
        try:
            sshd.check()
        except CommandError:
            files.write_file(OUR_PART, part)
        raise


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _lines(path: Path) -> Sequence[str]:
    return [line.strip() for line in _text(path).splitlines()]
