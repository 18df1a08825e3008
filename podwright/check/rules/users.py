"""Rules about users and groups: names, ids, keys, homes, LDAP."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from podwright.check.findings import Finding, KeyPath, error, remark, warning
from podwright.check.rules.rule import reads, valid_items
from podwright.settings.network import CreatedNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import NoOpenZfs
from podwright_bootstrap.features import MAX_ID, MIN_ID, Ldap
from podwright_constructs import facts
from podwright_constructs.certificates import are_certificates
from podwright_constructs.problems import dotted

USERS: KeyPath = ("nodes", "users")
GROUPS: KeyPath = ("nodes", "groups")
LDAP: KeyPath = ("nodes", "ldap")

NAME = re.compile(r"[a-z_]([a-z0-9_.-]{0,30}[a-z0-9_-])?")  # useradd(8), and dots, as Debian and Ubuntu accept
# https://salsa.debian.org/debian/base-passwd, and packages of the image; some groups equal root: disk, shadow, lxd.
_IMAGE_NAMES = """
tty disk lp uucp man proxy kmem dialout fax voice cdrom floppy tape audio dip operator irc src shadow utmp sasl games
nogroup sync gnats _apt crontab uuidd tcpdump ssh _ssh landscape lxd netdev tss pollinate fwupd-refresh
ec2-instance-connect _chrony chrony sssd kvm input sgx rdma wheel systemd-timesync systemd-journal systemd-coredump
root daemon bin sys sync mail news www-data backup list nobody adm sudo docker users video render plugdev staff
sshd munge slurm mysql ssm-user systemd-network systemd-resolve messagebus syslog
"""
IMAGE_NAMES = frozenset(_IMAGE_NAMES.split())  # users and groups of the image, which no person can be called
KEY_TYPES = frozenset(  # sshd(8), AUTHORIZED_KEYS FILE FORMAT
    [
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ]
)
HOME = re.compile(r"(/(?!\.\.?(/|$))[\w.-]+)+")
PORTS = range(1, 65536)


def names_of_people(settings: Settings) -> Iterator[Finding]:
    """``useradd`` refuses a user's or group's name, the image has it already, or it is used twice."""
    people = list(_each(settings, "name"))
    if not people:
        return
    from podwright_bootstrap.contract import JOB_USER  # noqa: PLC0415 — only files with users need it

    used_names: set[str] = set()
    for path, name in people:
        if not NAME.fullmatch(name):
            allowed = "lower-case letters, digits, -, _ and dots, at most 32, with a letter or _ first and no dot last"
            yield error(path, f"name: got {name!r}, need {allowed}", "")
        elif name in IMAGE_NAMES or name == JOB_USER:
            yield error(path, f"name: {name} belongs to the image", "use another name")
        elif name in used_names:
            yield error(path, f"name: {name} is used twice", "users and groups share one list of names")
        used_names.add(name)


def ids_of_people(settings: Settings) -> Iterator[Finding]:
    """An id is reserved for the system or used twice; a user's own group has the user's id."""
    owners: dict[int, str] = {}
    for path, number in _each(settings, "uid", "gid"):
        if not MIN_ID <= number <= MAX_ID:
            hint = "lower ids belong to the image's own users" if number < MIN_ID else ""
            yield error(path, f"{path[-1]}: got {number}, need {MIN_ID} to {MAX_ID}", hint)
        elif number in owners:
            hint = "use a unique id for each user and group"
            yield error(path, f"{path[-1]}: {owners[number]} has {number} already", hint)
        else:
            owners[number] = dotted(path[:-1])


def groups_of_people(settings: Settings) -> Iterator[Finding]:
    """A user is in a group that nodes.groups does not list; groups of the image, such as docker, may equal root."""
    listed = [group.name for group in settings.nodes.groups]
    for index, user in enumerate(settings.nodes.users):
        for position, group in enumerate(user.groups):
            if group in IMAGE_NAMES:
                message = f"groups: {group} is a group of the image, need one of nodes.groups"
                yield error((*USERS, index, "groups", position), message, "groups of the image may equal root")
            elif group not in listed and settings.are_valid("nodes.groups.name"):
                hint = f"add it to nodes.groups, with a gid; nodes.groups has {', '.join(listed) or 'no group'}"
                yield error((*USERS, index, "groups", position), f"groups: {group!r} is not in nodes.groups", hint)


def ssh_keys_of_people(settings: Settings) -> Iterator[Finding]:
    """A key is not one line of an OpenSSH public key, or it is a private key."""
    for index, user in enumerate(settings.nodes.users):
        for position, key in enumerate(user.ssh_keys):
            if why := _why_no_key(key):
                path = (*USERS, index, "ssh_keys", position)
                hint = "copy the one line of an id_….pub, such as `ssh-ed25519 AAAA… you`"
                yield error(path, f"ssh_keys: {why}", hint)


@reads("lustre.mount_path", "openzfs.mount_path")
def homes_of_people(settings: Settings) -> Iterator[Finding]:
    """A home is on no shared file system, in a folder of podwright, or the home of another user."""
    if not settings.nodes.users:
        return
    from podwright_bootstrap import contract  # noqa: PLC0415 — only files with users need it

    lustre = PurePosixPath(settings.lustre.mount_path)
    openzfs = None if isinstance(settings.openzfs, NoOpenZfs) else PurePosixPath(settings.openzfs.mount_path)
    usual = openzfs or lustre / contract.HOMES_DIRECTORY
    owners: dict[PurePosixPath, str] = {}
    home_by_parent: dict[PurePosixPath, PurePosixPath] = {}
    for user_path, user in valid_items(settings, USERS, settings.nodes.users, "home"):
        path, home = (*user_path, "home"), PurePosixPath(user.home or usual / user.name)
        folders = (contract.SHARED_DIRECTORY, contract.RUNS_DIRECTORY, contract.DATA_DIRECTORY)
        reserved_folders = [lustre / folder for folder in folders]
        below = [root for root in (openzfs, lustre) if root and root in home.parents]
        if user.home and not (below and HOME.fullmatch(user.home)):
            allowed_roots = f"{openzfs} or {lustre}" if openzfs else lustre
            yield error(path, f"home: got {user.home!r}, need a path below {allowed_roots}", "all nodes mount it")
        elif settings.is_wrong((*user_path, "name")):
            continue
        elif home == usual or any(home.is_relative_to(folder) for folder in reserved_folders):
            yield error(path, f"home: {home} is reserved", f"use a separate folder, such as {usual / user.name}")
        elif owners.get(home, user.name) != user.name:
            yield error(path, f"home: {home} is another user's", "use a separate folder")
        elif overlapping := home_by_parent.get(home) or next(filter(owners.get, home.parents), None):
            yield error(path, f"home: {home} and {overlapping}, another user's, overlap", "use a separate folder")
        owners[home] = user.name
        home_by_parent |= dict.fromkeys(home.parents, home)


def named_users(settings: Settings) -> Iterator[Finding]:
    """A user who may log in to compute nodes or controllers, or use the node's role, is on no node."""
    login_names = {"root", "ubuntu", *IMAGE_NAMES, *(user.name for user in settings.nodes.users)}
    all_are_in_file = settings.nodes.ldap is None and settings.are_valid("nodes.users.name", "nodes.ldap")
    for section, key in (("pam_slurm_adopt", "admins"), ("metadata_access", "users"), ("controller_logins", "admins")):
        for index, name in enumerate(getattr(getattr(settings.nodes, section), key, ())):
            path = ("nodes", section, key, index)
            if not re.fullmatch(r"[\w.@][\w.@-]*", name):
                yield error(path, f"{key}: got {name!r}, need a login name", "")
            elif name not in login_names and all_are_in_file:
                yield error(path, f"{key}: no user is called {name}", "add the user to nodes.users, or delete the name")


def source_of_slurm(settings: Settings) -> Iterator[Finding]:
    """The checksum of Slurm's source is no SHA-256."""
    pam = settings.nodes.pam_slurm_adopt
    if pam is None or pam.slurm_source_sha256 is None:
        return
    if not re.fullmatch("[0-9a-f]{64}", pam.slurm_source_sha256):
        message = f"slurm_source_sha256: got {pam.slurm_source_sha256!r}, need 64 digits of 0-9 and a-f"
        yield error(("nodes", "pam_slurm_adopt", "slurm_source_sha256"), message, "sha256sum prints it")


def role_of_login_nodes(settings: Settings) -> Iterator[Finding]:
    """Users of login nodes can use the nodes' role, because nodes.metadata_access gives it to everybody."""
    nodes = settings.nodes
    setting = nodes.metadata_access
    if setting is None or not setting.everybody or not (nodes.users or nodes.ldap) or not _has_login_nodes(settings):
        return
    message = "everybody: got true, so every user of the login nodes can use the nodes' role"
    hint = "name users whose programs need the role instead: `metadata_access: {users: [ubuntu]}`"
    yield warning(("nodes", "metadata_access", "everybody"), message, hint)


@reads("cluster.instance_groups.role")
def controller_logins(settings: Settings) -> Iterator[Finding]:
    """Users cannot log in: controllers are for administrators alone, and there are no login nodes."""
    nodes = settings.nodes
    logins = nodes.controller_logins
    if logins is None or logins.everybody is not False or not (nodes.users or nodes.ldap):
        return
    if not _has_login_nodes(settings):
        path = ("nodes", "controller_logins", "everybody")
        message = "everybody: got false and no login nodes, so users cannot log in"
        yield warning(path, message, "add an instance group of role login")


def _has_login_nodes(settings: Settings) -> bool:
    return any(group.role == "login" for group in settings.cluster.instance_groups)


def ldap(settings: Settings) -> Iterator[Finding]:
    """The LDAP server's address, bind DN, secret or CA certificate is invalid."""
    directory = settings.nodes.ldap
    if directory is None:
        return
    if not _is_ldap(directory.uri):
        yield error((*LDAP, "uri"), f"uri: got {directory.uri!r}, need ldaps://HOST[:PORT] or ldap://HOST[:PORT]", "")
    for key, value in (("search_base", directory.search_base), ("bind_dn", directory.bind_dn or "dc=x")):
        if not re.fullmatch(r"[A-Za-z][\w-]*=[^\n]+", value):
            yield error((*LDAP, key), f"{key}: got {value!r}, need a DN, such as dc=corp,dc=net", "")
    for key, groups in (("allowed_groups", directory.allowed_groups), ("sudo_groups", directory.sudo_groups)):
        for index, group in enumerate(groups):
            if not re.fullmatch(r"[\w.@ -]+", group):
                path = (*LDAP, key, index)
                yield error(path, f"{key}: got {group!r}, need a group's name, without commas", "")
    yield from _access_problems(directory)
    yield from _probe_problems(settings, directory)
    yield from _bind_problems(settings, directory)
    certificate = directory.certificate
    if certificate is not None and not (are_certificates(certificate) or re.fullmatch(r"/[\w./-]+", certificate)):
        hint = (
            "allowed: -----BEGIN CERTIFICATE----- … (write `certificate: |`), or a path on the nodes like /fsx/ca.pem"
        )
        yield error((*LDAP, "certificate"), "certificate: need PEM text or a path", hint)


@reads("network.endpoints")
def ldap_without_internet(settings: Settings) -> Iterator[Finding]:
    """Nodes without internet cannot read the LDAP password: the network has no endpoint for it."""
    directory, network = settings.nodes.ldap, settings.network
    if directory is None or directory.bind_secret_arn is None or not isinstance(network, CreatedNetwork):
        return
    if network.internet == "none" and "secretsmanager" not in network.endpoints:
        message = "bind_secret_arn: nodes without internet have no route to Secrets Manager"
        yield error((*LDAP, "bind_secret_arn"), message, "add secretsmanager to network.endpoints")


def _probe_problems(settings: Settings, directory: Ldap) -> Iterator[Finding]:
    path, user = (*LDAP, "probe_user"), directory.probe_user
    if user is not None and not re.fullmatch(r"[\w.@][\w.@-]*", user):
        yield error(path, f"probe_user: got {user!r}, need a login name", "")
    elif user in {person.name for person in settings.nodes.users}:
        message = f"probe_user: {user} is a user of this file, for whom nodes do not ask the directory"
        yield error(path, message, "name a person of the directory")


def _access_problems(directory: Ldap) -> Iterator[Finding]:
    access, attribute = directory.access_filter, directory.ssh_key_attribute
    if access is not None and not re.fullmatch(r"\([^\n]+\)", access):
        message = f"access_filter: got {access!r}, need an LDAP filter in parentheses, such as (employeeType=staff)"
        yield error((*LDAP, "access_filter"), message, "")
    elif access is not None and not _is_balanced(access):
        yield error((*LDAP, "access_filter"), f"access_filter: the parentheses of {access!r} do not match", "")
    if access is not None and directory.allowed_groups:
        hint = "put the groups into the filter, such as (memberOf=cn=research,ou=groups,dc=corp,dc=net)"
        yield error((*LDAP, "access_filter"), "access_filter conflicts with allowed_groups", hint)
    if attribute is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", attribute):
        message = f"ssh_key_attribute: got {attribute!r}, need an attribute's name, such as sshPublicKey"
        yield error((*LDAP, "ssh_key_attribute"), message, "")


def _is_balanced(text: str) -> bool:
    """Return whether the first parenthesis closes at the end, and only there."""
    depths = list(accumulate((char == "(") - (char == ")") for char in text))
    return depths[-1] == 0 and all(depth > 0 for depth in depths[:-1])


def _bind_problems(settings: Settings, directory: Ldap) -> Iterator[Finding]:
    arn = directory.bind_secret_arn
    if arn is not None and not facts.SECRET_ARN_PATTERN.fullmatch(arn):
        path = (*LDAP, "bind_secret_arn")
        yield error(path, f"bind_secret_arn: got {arn!r}, need an ARN like arn:aws:secretsmanager:…:secret:…", "")
    is_half = (arn is None) != (directory.bind_dn is None)
    if is_half and settings.are_valid("nodes.ldap.bind_dn", "nodes.ldap.bind_secret_arn"):
        key, missing_key = ("bind_dn", "bind_secret_arn") if arn is None else ("bind_secret_arn", "bind_dn")
        yield error(
            (*LDAP, key), f"{key} has no effect without {missing_key}", f"add {missing_key}, or delete the line"
        )
    if directory.probe_user is None and settings.are_valid("nodes.ldap.probe_user"):
        hint = "name a user that every node must find before it takes jobs"
        yield remark(LDAP, "ldap: without probe_user the boot does not test the directory", hint)


def _is_ldap(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        port = parts.port or next(iter(PORTS))
    except ValueError:
        return False
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    host = re.fullmatch(r"[A-Za-z0-9.-]+", parts.hostname or "")
    return parts.scheme in {"ldap", "ldaps"} and bool(host) and not extra and port in PORTS


def _why_no_key(key: str) -> str:
    """Return the problem of a public key; empty if the key is valid."""
    if "PRIVATE KEY" in key:
        return "this is a private key; replace the key pair, because others may have read it"
    if "\n" in key.strip():
        return "one key is one line"
    words = key.split()
    if len(words) < 2 or words[0] not in KEY_TYPES:  # noqa: PLR2004 (type and key)
        return f"{(words or ['nothing'])[0]!r} is not a key type"
    try:
        data = base64.b64decode(words[1], validate=True)
    except ValueError:
        return "the key's second word is damaged"
    fields = []
    while data:  # RFC 4253: each field after its length
        length = int.from_bytes(data[:4], "big")
        fields.append(data[4 : 4 + length])
        if len(data) < 4 + length:
            return "the key is cut off"
        data = data[4 + length :]
    return "" if len(fields) > 1 and fields[0] == words[0].encode() else "the key has another type than its line says"


def _each(settings: Settings, *keys: str) -> Iterator[tuple[KeyPath, Any]]:
    """Yield values of every user and group with their paths."""
    for section, people in ((USERS, settings.nodes.users), (GROUPS, settings.nodes.groups)):
        for index, item in enumerate(people):
            for key in keys:
                if hasattr(item, key):
                    yield (*section, index, key), getattr(item, key)
