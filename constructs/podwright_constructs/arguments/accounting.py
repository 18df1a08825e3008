"""Arguments of accounting databases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from podwright_constructs import facts


@dataclass(frozen=True, kw_only=True)
class ExistingAccountingArguments:
    """An existing MySQL or MariaDB that admits the nodes' security group."""

    endpoint: Annotated[str, Doc("Its host name.")]
    port: Annotated[int, Doc(f"Its TCP port. Default: {facts.MYSQL_PORT}.")] = facts.MYSQL_PORT
    secret_arn: Annotated[str, Doc("The Secrets Manager secret with its username and password.")]
    certificates: Annotated[
        str, Doc("PEM text of the authorities of its certificate; slurmdbd then connects with TLS. Default: no TLS.")
    ] = ""
