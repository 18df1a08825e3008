"""People and groups with the same ids on every node.

Slurm and both file systems go by ids: https://slurm.schedmd.com/quickstart_admin.html#infrastructure

Ids come from cluster.yaml and never change on a node, because files are owned by ids.
"""

from __future__ import annotations

import grp
import pwd
from pathlib import Path
from typing import Dict, Iterator, List

from podwright_bootstrap.features import Group, NodeFeatures, User
from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

SHELL = "/bin/bash"
CLOSED_SHELL = "/usr/sbin/nologin"
EXPIRED = "1"  # shadow(5), days since 1970: PAM lets the account in by no key and no password
MARK = "podwright"  # the comment of users that come from cluster.yaml
NO_PASSWORD = "*"  # noqa: S105 -- none fits; unlike "!", the account is not locked for keys


class UsersStep(Step):
    """Every user in cluster.yaml has the login, ids and groups given there; a removed login is closed, files stay."""

    name = "users"
    audience = "clusters with users or groups"
    required_because = "homes and files go by the ids that it gives"
    hint = "look at /etc/passwd and /etc/group of this node"
    time_limit_s = 600

    def applies(self, node: Node) -> bool:
        """Run in clusters with users or groups, now or before."""
        settings = node.parameters.nodes
        return bool(settings.users or settings.groups) or any(_is_open(entry) for entry in pwd.getpwall())

    def apply(self, node: Node) -> Iterator[str]:
        """Refuse taken ids and names, all at once, before any change; then add missing users and groups."""
        settings = node.parameters.nodes
        groups = _groups(settings)
        _refuse([*_taken_groups(groups), *_taken_users(settings.users)])
        for group in groups:
            yield from _add_group(group)
        for user in settings.users:
            yield from _add_user(user, home_of(user, node))
        for name, members in _members(settings).items():
            yield from _set_members(name, members)
        yield from _close_removed(settings.users)

    def verify(self, node: Node) -> None:
        """Check the ids and groups that the host reports."""
        for user in node.parameters.nodes.users:
            shown = process.run("id", user.name, timeout_s=60, quiet=True).output
            missing = [group for group in user.groups if f"({group})" not in shown]
            if f"uid={user.uid}({user.name}) gid={user.uid}({user.name})" not in shown or missing:
                raise BootstrapError(f"id {user.name} says {shown.strip()}, not uid {user.uid} and {user.groups}")


def home_of(user: User, node: Node) -> Path:
    """Return the user's home directory."""
    return Path(user.home) if user.home else node.homes / user.name


def _groups(settings: NodeFeatures) -> List[Group]:
    """Return the groups of cluster.yaml, and each user's own."""
    return [*settings.groups, *(Group(user.name, user.uid) for user in settings.users)]


def _taken_groups(groups: List[Group]) -> Iterator[str]:
    names, ids = {g.gr_name: g.gr_gid for g in grp.getgrall()}, {g.gr_gid: g.gr_name for g in grp.getgrall()}
    for group in groups:
        if names.get(group.name, group.gid) != group.gid:
            yield f"group {group.name} has gid {names[group.name]} on this host, {group.gid} in cluster.yaml"
        elif ids.get(group.gid, group.name) != group.name:
            yield f"gid {group.gid} is {ids[group.gid]}'s on this host, {group.name}'s in cluster.yaml"


def _taken_users(users: tuple[User, ...]) -> Iterator[str]:
    names, ids = {p.pw_name: p.pw_uid for p in pwd.getpwall()}, {p.pw_uid: p.pw_name for p in pwd.getpwall()}
    for user in users:
        if names.get(user.name, user.uid) != user.uid:
            yield f"user {user.name} has uid {names[user.name]} on this host, {user.uid} in cluster.yaml"
        elif ids.get(user.uid, user.name) != user.name:
            yield f"uid {user.uid} is {ids[user.uid]}'s on this host, {user.name}'s in cluster.yaml"


def _refuse(conflicts: List[str]) -> None:
    if conflicts:
        raise BootstrapError(
            "; ".join(conflicts),
            hint="set in cluster.yaml the ids that already own files, or other names and ids, and deploy; if the "
            "host's account is unused, remove it with userdel",
        )


def _add_group(group: Group) -> Iterator[str]:
    if group.name not in {entry.gr_name for entry in grp.getgrall()}:
        process.run("groupadd", "--gid", str(group.gid), group.name, timeout_s=60)
        yield f"added group {group.name} ({group.gid})"


def _add_user(user: User, home: Path) -> Iterator[str]:
    try:
        entry = pwd.getpwnam(user.name)
    except KeyError:
        ids = ("--uid", str(user.uid), "--gid", str(user.uid), "--no-log-init")  # a large uid makes a large lastlog
        place = ("--home-dir", home, "--no-create-home", "--shell", SHELL)
        process.run("useradd", *ids, *place, "--comment", MARK, "--password", NO_PASSWORD, user.name, timeout_s=60)
        yield f"added {user.name} ({user.uid})"
        return
    if (entry.pw_gid, entry.pw_dir) != (user.uid, str(home)):
        process.run("usermod", "--gid", str(user.uid), "--home", home, user.name, timeout_s=60)
        yield f"moved {user.name} to {home}"
    if entry.pw_shell == CLOSED_SHELL:
        process.run("usermod", "--shell", SHELL, "--expiredate", "", user.name, timeout_s=60)
        yield f"opened {user.name} again"


def _members(settings: NodeFeatures) -> Dict[str, List[str]]:
    return {
        group.name: [user.name for user in settings.users if group.name in user.groups] for group in settings.groups
    }


def _set_members(group: str, members: List[str]) -> Iterator[str]:
    """Set exactly these members: users who are removed from a group in cluster.yaml leave it."""
    if set(grp.getgrnam(group).gr_mem) != set(members):
        process.run("gpasswd", "--members", ",".join(members), group, timeout_s=60)
        yield f"group {group} is {', '.join(members) or 'empty'}"


def _close_removed(users: tuple[User, ...]) -> Iterator[str]:
    """Close the login of users who are no longer in cluster.yaml; the account keeps its id, which owns its files."""
    names = {user.name for user in users}
    for entry in pwd.getpwall():
        if _is_open(entry) and entry.pw_name not in names:
            ways = ("--shell", CLOSED_SHELL, "--expiredate", EXPIRED)
            process.run("usermod", *ways, entry.pw_name, timeout_s=60)
            yield f"closed {entry.pw_name}, who is no longer in cluster.yaml; the files stay"


def _is_open(entry: pwd.struct_passwd) -> bool:
    """Return whether the account is an open login that this or an earlier cluster.yaml created."""
    return entry.pw_gecos == MARK and entry.pw_shell != CLOSED_SHELL
