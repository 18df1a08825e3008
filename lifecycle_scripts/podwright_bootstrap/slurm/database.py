"""The SQL database that slurmdbd keeps jobs in: MariaDB on the controller, or an external database.

MariaDB on the controller is reached through its socket, without a password. For an RDS database of the cluster, the
controller uses the administrator's secret to make a user of its own, so that RDS may change the administrator's
password.
"""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Optional

from podwright_bootstrap.aws import secret
from podwright_bootstrap.contract import Accounting
from podwright_bootstrap.host import files, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError

USER = "slurm"  # slurmdbd runs as this user, who is also the user of the database on the controller
SCHEMA = "slurm_acct_db"  # slurmdbd.conf(5), StorageLoc
MARIADB_CONF = Path("/etc/mysql/mariadb.conf.d/60-slurm.cnf")
OWN_USER = "slurmdbd"  # user of a database elsewhere, whose administrator may be called slurm
CERTIFICATES = Path("/opt/podwright/accounting-ca.pem")  # /opt/slurm/etc is shared by controllers
OWN_PASSWORD = re.compile(r"^StoragePass=([0-9a-f]{48})$", re.MULTILINE)
CONNECT_LIMIT_S = 10
MAX_SCHEMA_LENGTH = 64

OWN_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, LOCK TABLES, CREATE TEMPORARY TABLES, "
    "EXECUTE, CREATE ROUTINE, ALTER ROUTINE"
)

# What Slurm recommends, and no TCP port: slurmdbd comes through the socket.
# https://slurm.schedmd.com/accounting.html#slurm-accounting-configuration-before-build
MARIADB_SETTINGS = """[mariadbd]
skip_networking
innodb_buffer_pool_size = 1G
innodb_log_file_size = 64M
innodb_lock_wait_timeout = 900
"""
LOOK = """
SHOW DATABASES LIKE 'slurm_acct_db';
SELECT plugin FROM mysql.user WHERE User = 'slurm' AND Host = 'localhost';
"""
# No password: MariaDB learns the user from the socket.
# https://mariadb.com/kb/en/authentication-plugin-unix-socket/
SET_UP = f"""
CREATE DATABASE IF NOT EXISTS {SCHEMA};
CREATE OR REPLACE USER '{USER}'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL PRIVILEGES ON {SCHEMA}.* TO '{USER}'@'localhost';
"""


@dataclass(frozen=True)
class Database:
    """The address and login of slurmdbd's database."""

    host: str = "localhost"
    port: int = 0  # 0: through the socket
    user: str = USER
    password: str = ""
    schema: str = SCHEMA
    certificates: Optional[Path] = None  # If there are any, connections use TLS.

    def slurmdbd_conf(self) -> str:
        """Its lines of slurmdbd.conf."""
        lines = {"StorageHost": self.host, "StorageUser": self.user, "StorageLoc": self.schema}
        if self.port:
            lines.update(StoragePort=str(self.port), StoragePass=_quoted(self.password))
        if self.certificates:  # slurmdbd.conf(5): StorageParameters
            lines["StorageParameters"] = f"SSL_CA={self.certificates}"
        return "StorageType=accounting_storage/mysql\n" + "".join(f"{key}={text}\n" for key, text in lines.items())


def on_this_host() -> Iterator[str]:
    """MariaDB runs, with a database for slurmdbd and a user who needs no password."""
    configured = files.write_file(MARIADB_CONF, MARIADB_SETTINGS)
    if configured:
        yield f"wrote {MARIADB_CONF}"
    yield from units.keep_on("mariadb", restart=configured)
    if _sql(LOOK).split() != [SCHEMA, "unix_socket"]:
        _sql(SET_UP)
        yield f"made database {SCHEMA} for {USER}"


def by_name(accounting: Accounting, *, cluster_name: str, address: str, slurmdbd_conf: Path) -> Database:
    """A database elsewhere, which answers and lets us in.

    It may serve several clusters, so each has a schema, by its name: a cluster that is created again finds its jobs.
    The user is the secret's, with the password of today; or one of this host's own that the secret's user makes.

    Raises:
        BootstrapError: the secret is unreadable or not a database's, or the database does not answer or refuses.
    """
    schema = f"{SCHEMA}_{cluster_name.replace('-', '_')}"[:MAX_SCHEMA_LENGTH]
    certificates = CERTIFICATES if accounting.certificates else None
    if certificates:
        files.write_file(certificates, accounting.certificates, mode=0o644)

    def login(user: str, password: str) -> Database:
        return Database(accounting.endpoint, accounting.port, user, password, schema, certificates)

    if not accounting.makes_user:
        database = login(*_credentials(accounting.secret_arn))
        _connect(database, accounting.secret_arn)
        return database
    text = slurmdbd_conf.read_text(encoding="utf-8") if slurmdbd_conf.exists() else ""
    password_line = OWN_PASSWORD.search(text)
    if password_line and _lets_in(login(OWN_USER, password_line.group(1))):
        return login(OWN_USER, password_line.group(1))
    new_login = login(OWN_USER, secrets.token_hex(24))
    administrator = login(*_credentials(accounting.secret_arn))
    _connect(administrator, accounting.secret_arn)
    _client(administrator, _own_user(new_login, address))
    return new_login


def _own_user(database: Database, address: str) -> str:
    """Return the SQL that makes a user for slurmdbd on this host; it may do what slurmdbd does, in its schema alone."""
    user = f"'{database.user}'@'{address}'"
    pattern = database.schema.replace("_", "\\_")  # an underscore stands for any letter there
    tls = " REQUIRE SSL" if database.certificates else ""
    return f"""
CREATE DATABASE IF NOT EXISTS `{database.schema}`;
CREATE OR REPLACE USER {user} IDENTIFIED BY '{database.password}'{tls};
GRANT {OWN_RIGHTS} ON `{pattern}`.* TO {user};
"""


def _sql(statements: str) -> str:
    """Run SQL on this host as its administrator: root of the host, known by the socket. Gives the rows."""
    command = ("mysql", "--user=root", "--batch", "--skip-column-names")
    return process.run(*command, timeout_s=60, quiet=True, stdin=statements).output


def _credentials(secret_arn: str) -> tuple[str, str]:
    text = secret.read(secret_arn)
    try:
        content = json.loads(text)
        return str(content["username"]), str(content["password"])
    except (ValueError, KeyError, TypeError):  # The error would write the secret to the log.
        hint = 'its text has to be JSON like {"username": "…", "password": "…"}, as RDS writes it'
        raise BootstrapError(f"the secret {secret_arn} has no username and password", hint=hint) from None


def _connect(database: Database, secret_arn: str) -> None:
    """Log in once, with a client whose error names the problem."""
    try:
        waits.retry(
            lambda: _client(database, "SELECT 1;"),
            attempts=6,
            pause_s=10,
            errors=(CommandError,),
        )
    except CommandError as error:
        refused = "Access denied" in str(error)
        hint = (
            f"does the secret {secret_arn} hold the password that the database has now?"
            if refused
            else f"is the database available, and does its security group admit TCP {database.port} from the nodes?"
        )
        raise BootstrapError(
            f"the database {database.host}:{database.port} {'refuses' if refused else 'does not answer'}: {error}",
            hint=hint,
        ) from error


def _lets_in(database: Database) -> bool:
    """Return whether the database accepts the login; False also while it does not answer."""
    try:
        _client(database, "SELECT 1;")
    except CommandError:
        return False
    return True


def _client(database: Database, statements: str) -> None:
    """Run SQL over the network. Passwords are in a file that root alone reads, and in a pipe."""
    with _option_file(database) as words:
        process.run("mysql", *words, timeout_s=3 * CONNECT_LIMIT_S, quiet=True, stdin=statements)


@contextmanager
def _option_file(database: Database) -> Iterator[List[str]]:
    """Yield the arguments of a client; MariaDB's and MySQL's each know one of the two words for a verified name."""
    lines = ["[client]", f'user="{database.user}"', f'password="{_escaped(database.password)}"']
    if database.certificates:
        lines += [f"ssl-ca={database.certificates}", "loose-ssl-verify-server-cert", "loose-ssl-mode=VERIFY_IDENTITY"]
    with tempfile.NamedTemporaryFile("w", prefix="podwright-", suffix=".cnf", encoding="utf-8") as file:  # mode 0600
        file.write("\n".join(lines) + "\n")
        file.flush()
        words = [f"--defaults-extra-file={file.name}", f"--host={database.host}", f"--port={database.port}"]
        yield [*words, "--protocol=tcp", f"--connect-timeout={CONNECT_LIMIT_S}"]


def _quoted(password: str) -> str:
    """As Slurm reads its files: a backslash escapes, # begins a comment, a space ends a value that has no quotes."""
    if password.startswith('"') or (" " in password and '"' in password):
        hint = "choose another password: no double quote at the beginning, nor together with spaces"
        raise BootstrapError("slurmdbd.conf cannot hold the database's password", hint=hint)
    text = password.replace("\\", "\\\\").replace("#", "\\#")
    return f'"{text}"' if " " in text else text


def _escaped(text: str) -> str:
    """As an option file quotes: https://dev.mysql.com/doc/refman/8.0/en/option-files.html."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
