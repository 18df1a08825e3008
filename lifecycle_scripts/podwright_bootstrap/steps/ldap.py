"""People that an LDAP server knows, through SSSD.

https://sssd.io/docs/ldap/ldap-introduction.html and sssd-ldap(5); the packages are the distribution's, which apt
verifies by their repository's signature.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Iterator, List, Optional

from podwright_bootstrap import contract
from podwright_bootstrap.aws import secret
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.features import Ldap as Settings
from podwright_bootstrap.host import files, ldap, process, sshd, units, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import metrics_service, packages
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import shared_secret

PACKAGES = ("sssd-ldap", "libnss-sss", "libpam-sss")
LIBRARIES, INSTALLED = Path("/usr/lib"), ("*/sssd/libsss_ldap.so", "*/libnss_sss.so.2", "*/security/pam_sss.so")
CONFIGURATION = Path("/etc/sssd/sssd.conf")
FOR_GROUP = 0o640
OURS = "# Written by podwright's bootstrap."
CERTIFICATE = Path("/etc/ssl/podwright-ldap.pem")
IMAGE_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
NSSWITCH = Path("/etc/nsswitch.conf")
PAM_PROFILES = {"sss": "pam_sss.so", "mkhomedir": "pam_mkhomedir.so"}  # pam-auth-update's names, and the modules
PAM = (Path("/etc/pam.d/common-auth"), Path("/etc/pam.d/common-session"))
OWN_USERS, OWN_GROUPS = Path("/etc/passwd"), Path("/etc/group")
SOCKETS = ("sssd-nss.socket", "sssd-pam.socket", "sssd-pam-priv.socket", "sssd-ssh.socket")
SSHD_PART = Path("/etc/ssh/sshd_config.d/podwright-ldap.conf")
KEYS_COMMAND = "/usr/bin/sss_ssh_authorizedkeys"  # sss_ssh_authorizedkeys(1)
SUDOERS = Path("/etc/sudoers.d/podwright-ldap")
PASSWORD_KEY = "ldap_default_authtok"  # noqa: S105 (of sssd-ldap(5))
SHARED_PASSWORD = "ldap"  # noqa: S105 (the name of a shared secret)
CACHE = Path("/var/lib/sss/db")
READ_BY_PROGRAMS = Path("/var/lib/sss/mc")  # even where SSSD has ended
ANSWER_LIMIT_S = 20  # The server answers our own request within this.
FIRST_ANSWER_LIMIT_S = 120  # SSSD finds the probe user within this.


class LdapStep(Step):
    """People of the LDAP server are known here, over TLS alone."""

    name = "ldap"
    audience = "clusters with an LDAP server"
    hint = "journalctl -u sssd and /var/log/sssd/ say more; does the server admit the nodes' addresses?"
    time_limit_s = 1800
    attempts = 3

    def applies(self, node: Node) -> bool:
        """Run with nodes.ldap."""
        return node.parameters.nodes.ldap is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Ask the server ourselves first: SSSD would only not know anybody."""
        settings = _settings(node)
        if _is_text(settings.certificate) and files.write_file(
            CERTIFICATE, f"{(settings.certificate or '').strip()}\n"
        ):
            yield f"wrote {CERTIFICATE}"
        password = _password(settings, node)
        yield from _hand_over(settings, password, node)
        bind = (settings.bind_dn, password) if settings.bind_dn and password else None
        ldap.greet(
            settings.uri, certificate=_certificate(settings), bind=bind, timeout_s=ANSWER_LIMIT_S * waits.PATIENCE
        )
        yield from _install(node)
        if node.parameters.nodes.observability:  # or the next boot would find an account that SSSD is to leave out
            yield from metrics_service.make_user()
        changed = files.write_file(CONFIGURATION, _configuration(settings, password, node), mode=_mode())
        if changed:
            yield f"wrote {CONFIGURATION}"
            process.run("systemctl", "stop", "sssd", timeout_s=60, check=False)
            list(files.remove_files(*CACHE.glob("cache_*")))  # it may have whom SSSD leaves out now
        node.homes.mkdir(parents=True, exist_ok=True)  # First logins make homes in it.
        yield from _ask_sssd_for_names()
        yield from _ask_sssd_at_login()
        yield from _no_second_door()
        yield from units.keep_on("sssd", restart=changed)
        yield from _ask_sssd_for_keys(settings)
        yield from _let_become_root(settings)

    def remove(self, node: Node) -> Iterator[str]:
        """Forget the directory: its password, its people, their keys and their right to sudo."""
        if node.role == CONTROLLER and node.has_shared:
            yield from shared_secret.forget(node, SHARED_PASSWORD)
        changes = list(files.remove_files(SUDOERS, SSHD_PART))
        if changes:
            process.run("systemctl", "try-reload-or-restart", "ssh", timeout_s=60)
        yield from changes
        if CONFIGURATION.is_file() and CONFIGURATION.read_text().startswith(OURS):
            process.run("systemctl", "disable", "--now", "sssd", timeout_s=60, check=False)
            caches = [path for folder in (CACHE, READ_BY_PROGRAMS) for path in folder.glob("*")]
            yield from list(files.remove_files(CONFIGURATION, CERTIFICATE, *caches))[:1]

    def verify(self, node: Node) -> None:
        """Check that the daemon runs and finds the probe user."""
        settings = _settings(node)
        process.run("systemctl", "is-active", "sssd", timeout_s=30, quiet=True)
        if settings.ssh_key_attribute:
            _verify_sshd()
        user = settings.probe_user
        if user:
            event = f"user {user} of {settings.uri}"
            hint = f"is {user} below {settings.search_base}, with uidNumber and gidNumber? {self.hint}"
            waits.wait_until(lambda: _is_known(user), event=event, limit_s=FIRST_ANSWER_LIMIT_S, hint=hint)
            process.run("id", user, timeout_s=60)


def _settings(node: Node) -> Settings:
    settings = node.parameters.nodes.ldap
    if settings is None:
        raise BootstrapError("the contract names no LDAP server")
    return settings


def _install(node: Node) -> Iterator[str]:
    """From the distribution, where the image lacks it."""
    if all(any(LIBRARIES.glob(file)) for file in INSTALLED):
        return
    try:
        packages.install(*PACKAGES, node=node)
    except CommandError as error:
        raise CommandError(
            f"this image has no SSSD, and apt cannot install it: {error}",
            hint=f"make an image with {' '.join(PACKAGES)} (image_id), or let the nodes reach their apt repositories",
        ) from error
    yield f"installed {', '.join(PACKAGES)}"


def _is_text(certificate: Optional[str]) -> bool:
    return certificate is not None and not certificate.startswith("/")


def _certificate(settings: Settings) -> Path:
    if settings.certificate is None:
        return IMAGE_AUTHORITIES
    return CERTIFICATE if _is_text(settings.certificate) else Path(settings.certificate)


def _hand_over(settings: Settings, password: Optional[str], node: Node) -> Iterator[str]:
    """Share the password with other nodes: their roles may not read it, because their users have the roles, too."""
    if node.role != CONTROLLER or not node.has_shared:
        return
    if password and settings.bind_secret_arn:
        yield from shared_secret.hand_over(node, SHARED_PASSWORD, arn=settings.bind_secret_arn, text=password)
    else:
        yield from shared_secret.forget(node, SHARED_PASSWORD)


def has_new_password(node: Node) -> bool:
    """Return whether the password differs from SSSD's: controllers ask AWS, other nodes read the controllers' file.

    Raises:
        BootstrapError: AWS does not return the password, or the file was not written by a controller.
    """
    settings = node.parameters.nodes.ldap
    if settings is None or not settings.bind_secret_arn or not CONFIGURATION.is_file():
        return False
    written = shared_secret.find(node, SHARED_PASSWORD, arn=settings.bind_secret_arn) if node.has_shared else None
    if _asks_aws(node):
        password = _from_aws(settings.bind_secret_arn)
        if node.has_shared and password != written:
            return True
    elif written is None:  # the next boot of a controller writes it
        return False
    else:
        password = written
    return f"{PASSWORD_KEY} = {password}" not in CONFIGURATION.read_text().splitlines()


def _password(settings: Settings, node: Node) -> Optional[str]:
    """From Secrets Manager into memory, or from the controller: neither arguments nor log have it."""
    if not settings.bind_secret_arn:
        return None
    if _asks_aws(node):
        return _from_aws(settings.bind_secret_arn)
    return shared_secret.receive(node, SHARED_PASSWORD, arn=settings.bind_secret_arn)


def _asks_aws(node: Node) -> bool:
    """Return whether this node's role may read the secret: a controller's, or any without a shared file system."""
    return node.role == CONTROLLER or not node.has_shared


def _from_aws(arn: str) -> str:
    password = secret.read(arn)
    if not password or password != password.strip() or not password.isprintable():
        raise BootstrapError(
            f"the value of {arn} is not a password of one line",
            hint="put the password alone into it, as text, not JSON",
        )
    return password


def _configuration(settings: Settings, password: Optional[str], node: Node) -> str:
    users, groups = _own_users(node), _own_groups(node)
    options = {
        "id_provider": "ldap",
        "auth_provider": "ldap",
        "ldap_uri": settings.uri,
        "ldap_search_base": settings.search_base,
        "ldap_user_search_base": f"{settings.search_base}?subtree?{_none_of(users, 'uidNumber', 'gidNumber')}",
        "ldap_group_search_base": f"{settings.search_base}?subtree?{_none_of(groups, 'gidNumber')}",
        "ldap_schema": settings.ldap_schema,
        "ldap_id_use_start_tls": str(settings.uri.startswith("ldap:")).lower(),
        "ldap_tls_reqcert": "demand",
        "ldap_tls_cacert": _certificate(settings),
        "ldap_default_bind_dn": settings.bind_dn,
        PASSWORD_KEY: password,
        "access_provider": _access(settings),
        "simple_allow_groups": ", ".join(settings.allowed_groups),
        "ldap_access_order": "filter" if settings.access_filter else None,
        "ldap_access_filter": settings.access_filter,
        "ldap_user_ssh_public_key": settings.ssh_key_attribute,
        "override_homedir": node.homes / "%u",
        "override_shell": "/bin/bash",
        "min_id": contract.FIRST_USER_ID,
        "cache_credentials": "true",  # who has logged in can again while the server is away
    }
    lines = [f"{name} = {value}" for name, value in options.items() if value]
    services = "nss, pam, ssh" if settings.ssh_key_attribute else "nss, pam"
    sssd = ["[sssd]", f"services = {services}", "domains = ldap"]
    # Or the directory's ubuntu would log in as ours, with the directory's password or key.
    nss = ["[nss]", f"filter_users = {_names(users)}", f"filter_groups = {_names(groups)}"]
    return "\n".join([OURS, *sssd, "", *nss, "", "[domain/ldap]", *lines]) + "\n"


def _mode() -> int:
    """Return the mode of a file that only SSSD reads: since 2.10 it lets its own group read it, and belongs to root."""
    is_group_readable = CONFIGURATION.is_file() and stat.S_IMODE(CONFIGURATION.stat().st_mode) == FOR_GROUP
    return FOR_GROUP if is_group_readable else 0o600


def _own_users(node: Node) -> List[List[str]]:
    """Return name, uid and gid of each user of this node, and of those that it is about to have."""
    users = [[user.name, str(user.uid), str(user.uid)] for user in node.parameters.nodes.users]
    return users + [[row[0], *row[2:4]] for row in _rows(OWN_USERS)]


def _own_groups(node: Node) -> List[List[str]]:
    """Return name and gid of each group, likewise; a user's own has the user's name."""
    nodes = node.parameters.nodes
    groups = [[group.name, str(group.gid)] for group in nodes.groups]
    return groups + [[user.name, str(user.uid)] for user in nodes.users] + [row[0:3:2] for row in _rows(OWN_GROUPS)]


def _rows(file: Path) -> List[List[str]]:
    """Return the fields of passwd(5) or group(5)."""
    return [line.split(":") for line in file.read_text().splitlines() if ":" in line]


def _names(rows: List[List[str]]) -> str:
    return ", ".join(sorted({row[0] for row in rows}))


def _none_of(rows: List[List[str]], *attributes: str) -> str:
    """Return an LDAP filter without entries that have, in one of the attributes, an id of the rows' columns."""
    terms = {f"({name}={ids[column]})" for _, *ids in rows for column, name in enumerate(attributes) if ids[column]}
    return f"(!(|{''.join(sorted(terms))}))"


def _access(settings: Settings) -> str:
    """Return SSSD's provider; a domain has only one."""
    if settings.access_filter:
        return "ldap"
    return "simple" if settings.allowed_groups else "permit"


def _no_second_door() -> Iterator[str]:
    """Debian's package lets systemd start SSSD's parts, too: their sockets fail where sssd.conf lists the services."""
    for socket in SOCKETS:
        if units.answer("is-enabled", socket) == "enabled":
            process.run("systemctl", "disable", "--now", socket, timeout_s=60)
            yield f"disabled {socket}"


def _ask_sssd_for_names() -> Iterator[str]:
    """Add sss to nsswitch.conf: the package does it when it is installed, but an image's own file may lack it."""
    lines = NSSWITCH.read_text().splitlines()
    asking = [f"{line} sss" if _lacks_sssd(line) else line for line in lines]
    if files.write_file(NSSWITCH, "\n".join(asking) + "\n"):
        yield f"named sss in {NSSWITCH}"


def _lacks_sssd(line: str) -> bool:
    database, _, sources = line.partition(":")
    return database in {"passwd", "group", "shadow"} and "sss" not in sources.split()


def _ask_sssd_at_login() -> Iterator[str]:
    """By the distribution's own tool; a home is made at the first login."""
    text = "".join(path.read_text() for path in PAM)
    missing = [profile for profile, module in PAM_PROFILES.items() if module not in text]
    if missing:
        process.run("pam-auth-update", "--enable", *missing, timeout_s=60)
        yield f"enabled {', '.join(missing)} in PAM"


def _ask_sssd_for_keys(settings: Settings) -> Iterator[str]:
    """Let sshd ask SSSD for public keys, after the user's own file."""
    text = f"AuthorizedKeysCommand {KEYS_COMMAND}\nAuthorizedKeysCommandUser nobody\n"
    changes = list(_keep(SSHD_PART, text if settings.ssh_key_attribute else ""))
    if changes:
        sshd.reload()
    yield from changes


def _verify_sshd() -> None:
    if f"authorizedkeyscommand {KEYS_COMMAND}" not in sshd.settings():
        raise BootstrapError(
            "sshd does not ask SSSD for keys",
            hint=f"does /etc/ssh/sshd_config include {SSHD_PART.parent}/*.conf, before another AuthorizedKeysCommand?",
        )


def _let_become_root(settings: Settings) -> Iterator[str]:
    """Let members of groups use sudo with their password; sudo itself says first whether it can read the rules."""
    rules = "".join(f"%{_in_sudoers(group)} ALL=(ALL:ALL) ALL\n" for group in settings.sudo_groups)
    if rules:
        if not process.finds("visudo"):
            raise BootstrapError("this image has no sudo", hint="make an image with it, or leave sudo_groups out")
        candidate = contract.STATE_DIRECTORY / "sudoers.candidate"
        files.write_file(candidate, rules, mode=0o440)
        try:
            process.run("visudo", "--check", "--quiet", f"--file={candidate}", timeout_s=30)
        finally:
            candidate.unlink()
    yield from _keep(SUDOERS, rules, mode=0o440)


def _in_sudoers(group: str) -> str:
    """Return a group's name as sudoers(5) has it."""
    return re.sub(r"[^\w.-]", lambda match: f"\\{match[0]}", group)


def _keep(path: Path, text: str, *, mode: int = 0o644) -> Iterator[str]:
    """Write a file; remove it if the text is empty."""
    if text:
        if files.write_file(path, text, mode=mode):
            yield f"wrote {path}"
    else:
        yield from files.remove_files(path)


def _is_known(user: str) -> bool:
    return process.run("getent", "passwd", user, timeout_s=30, check=False, quiet=True).exit_code == 0
