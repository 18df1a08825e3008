"""The accounting database of slurmdbd: existing, or a new RDS for MariaDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from constructs import Construct

from podwright_constructs import checks, facts, rds_certificates
from podwright_constructs.arguments.accounting import ExistingAccountingArguments
from podwright_constructs.aws.db_instance import DbInstance
from podwright_constructs.aws.db_parameter_group import DbParameterGroup, DbParameterGroupParameter
from podwright_constructs.aws.db_subnet_group import DbSubnetGroup
from podwright_constructs.aws.security_group import SecurityGroup
from podwright_constructs.aws.subnet import Subnet
from podwright_constructs.aws.vpc_security_group_ingress_rule import VpcSecurityGroupIngressRule
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.grants import Grantee
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.metric import Metric
from podwright_constructs.network import Network
from podwright_constructs.problems import refuse

USER = "slurm"
CERTIFICATE_AUTHORITY = "rds-ca-rsa2048-g1"


class AccountingDatabase(Protocol):
    """The attributes of a database that slurmdbd needs."""

    @property
    def endpoint(self) -> str:
        """Its host name."""

    @property
    def port(self) -> int:
        """Its TCP port."""

    @property
    def secret_arn(self) -> str:
        """The Secrets Manager secret with ``username`` and ``password``."""

    @property
    def certificates(self) -> str:
        """The authorities of its certificate, in PEM: slurmdbd connects with TLS. Empty: without."""

    @property
    def has_masters_secret(self) -> bool:
        """True if the secret is the master's, so that slurmdbd gets a user of its own."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """The resources that a controller depends on."""


@dataclass(frozen=True)
class LocalAccountingDatabase:
    """MariaDB on the controller, which lifecycle scripts set up: its data are lost with the controller's disk."""

    endpoint = ""
    port = facts.MYSQL_PORT
    secret_arn = ""
    certificates = ""
    has_masters_secret = False
    ready: Sequence[ITerraformDependable] = ()


@dataclass(frozen=True, kw_only=True)
class ExistingAccountingDatabase(ExistingAccountingArguments):
    """A MySQL or MariaDB you have, which lets the nodes' security group in.

    Raises:
        InvalidArgumentsError: the endpoint or the secret's ARN is malformed; all problems are in it.
    """

    has_masters_secret = False
    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        refuse(
            self,
            checks.existing_accounting_database(
                endpoint=self.endpoint, secret_arn=self.secret_arn, port=self.port, certificates=self.certificates
            ),
        )


class AccountingMariaDb(CheckedConstruct):
    """An encrypted RDS for MariaDB in its own subnets without internet, reached by the nodes' security group alone.

    RDS makes the master's password, keeps it in Secrets Manager and changes it every seven days; Terraform never sees
    it, so it is in no state. Controllers read it once, to make slurmdbd a user of its own for each of them.
    https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/rds-secrets-manager.html

    ``subnet_cidrs`` are blocks of the network's VPC by the id of their zone, two zones at least; ``subnet_ids`` are
    existing subnets there instead, such as those that another account shares.
    ``require_tls=False`` is for clients that do not connect with TLS, such as HyperPod's own slurmdbd may be.
    ``on_destroy="retain"`` makes Terraform refuse to destroy the database, ``"backup"`` deletes it after a last
    snapshot, which stays, ``"destroy"`` without one.

    Raises:
        InvalidArgumentsError: a name, class, size or block that RDS or EC2 would refuse; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        network: Network,
        region: str,
        subnet_cidrs: Mapping[str, str] | None = None,
        subnet_ids: Sequence[str] = (),
        instance_class: str = "db.t4g.medium",
        storage_gib: int = 50,
        key_arn: str | None = None,
        require_tls: bool = True,
        on_destroy: Literal["retain", "backup", "destroy"] = "retain",
    ) -> None:
        problems = checks.accounting_maria_db(
            name=name,
            region=region if require_tls else None,
            subnet_cidrs=subnet_cidrs or {},
            subnet_ids=subnet_ids,
            instance_class=instance_class,
            storage_gib=storage_gib,
            key_arn=key_arn,
            on_destroy=on_destroy,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        security_group, rule = self._security_group(name, network)
        # RDS has one snapshot of a name: that of a backup has the id of this deployment's security group.
        snapshots = {"retain": f"{name}-last", "backup": f"{name}-last-{security_group.id}"}
        subnets = subnet_ids or self._new_subnets(name, network, subnet_cidrs or {})
        subnet_group = DbSubnetGroup(self, "subnet_group", name=name, subnet_ids=subnets)
        database = DbInstance(
            self,
            "database",
            identifier=name,
            engine="mariadb",
            engine_version="10.11",
            instance_class=instance_class,
            allocated_storage=storage_gib,
            storage_type="gp3",
            storage_encrypted=True,
            kms_key_id=key_arn,
            username=USER,
            manage_master_user_password=True,
            master_user_secret_kms_key_id=key_arn,
            port=facts.MYSQL_PORT,
            db_subnet_group_name=subnet_group.name,
            vpc_security_group_ids=[security_group.id],
            publicly_accessible=False,
            parameter_group_name=self._parameters(name).name if require_tls else None,
            ca_cert_identifier=CERTIFICATE_AUTHORITY,
            multi_az=True,
            backup_retention_period=7,
            copy_tags_to_snapshot=True,
            auto_minor_version_upgrade=True,
            enabled_cloudwatch_logs_exports=["error", "slowquery"],
            deletion_protection=on_destroy == "retain",
            skip_final_snapshot=on_destroy == "destroy",
            final_snapshot_identifier=snapshots.get(on_destroy),
        )
        self.database, self.id = database, name
        self.endpoint = database.address
        self.port = facts.MYSQL_PORT
        self.secret_arn = database.get_string_attribute("master_user_secret[0].secret_arn")
        self.certificates = rds_certificates.of_region(region) if require_tls else ""
        self.has_masters_secret = True
        self.ready: Sequence[ITerraformDependable] = [database, rule]

    @staticmethod
    def from_endpoint(*, endpoint: str, secret_arn: str, port: int = facts.MYSQL_PORT) -> ExistingAccountingDatabase:
        """Return a database you have.

        Raises:
            InvalidArgumentsError: the endpoint or the secret's ARN is malformed; all problems are in it.
        """
        return ExistingAccountingDatabase(endpoint=endpoint, secret_arn=secret_arn, port=port)

    def grant_read_password(self, role: Grantee) -> None:
        """Let a role read the database's password; a key of yours needs a grant of its own."""
        actions = ["secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue"]
        role.add_statement({"actions": actions, "resources": [self.secret_arn]})

    def metric(self, name: str, statistic: Literal["Average", "Maximum", "Minimum", "Sum"] = "Average") -> Metric:
        """Return one of its metrics.

        https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/rds-metrics.html
        """
        return Metric(namespace="AWS/RDS", name=name, dimensions={"DBInstanceIdentifier": self.id}, statistic=statistic)

    def metric_free_storage(self) -> Metric:
        """Return its free storage in bytes."""
        return self.metric("FreeStorageSpace", "Minimum")

    def _parameters(self, name: str) -> DbParameterGroup:
        """Refuse connections without TLS.

        https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/mariadb-ssl-connections.require-ssl.html
        """
        return DbParameterGroup(
            self,
            "parameters",
            name=name,
            family="mariadb10.11",
            description="Slurm's accounting database, with TLS alone",
            parameter=[DbParameterGroupParameter(name="require_secure_transport", value="1")],
        )

    def _security_group(self, name: str, network: Network) -> tuple[SecurityGroup, VpcSecurityGroupIngressRule]:
        group = SecurityGroup(
            self,
            "security_group",
            name=f"{name}-database",
            description="Slurm's accounting database",
            vpc_id=network.vpc_id,
        )
        rule = VpcSecurityGroupIngressRule(
            self,
            "from_nodes",
            security_group_id=group.id,
            referenced_security_group_id=network.security_group_id,
            ip_protocol="tcp",
            from_port=facts.MYSQL_PORT,
            to_port=facts.MYSQL_PORT,
            description="slurmdbd",
        )
        return group, rule

    def _new_subnets(self, name: str, network: Network, cidrs: Mapping[str, str]) -> list[str]:
        subnets = [
            Subnet(
                self,
                f"subnet_{zone}",
                vpc_id=network.vpc_id,
                availability_zone_id=zone,
                cidr_block=cidr,
                tags={"Name": f"{name}-{zone}"},
            )
            for zone, cidr in sorted(cidrs.items())
        ]
        return [subnet.id for subnet in subnets]
