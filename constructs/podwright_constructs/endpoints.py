"""VPC endpoints, through which a VPC reaches AWS's services without the internet."""

from __future__ import annotations

from collections.abc import Sequence

from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.security_group import SecurityGroup
from podwright_constructs.aws.vpc_endpoint import VpcEndpoint
from podwright_constructs.aws.vpc_security_group_ingress_rule import VpcSecurityGroupIngressRule
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.problems import refuse


class S3Endpoint(CheckedConstruct):
    """S3 by the routes of some tables, free of charge.

    https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-s3.html
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, vpc_id: str, route_table_ids: Sequence[str]) -> None:
        super().__init__(scope, id_)
        endpoint = VpcEndpoint(
            self,
            "endpoint",
            vpc_id=vpc_id,
            service_name=_service_name(DataRegion(self, "region").id, "s3"),
            vpc_endpoint_type="Gateway",
            route_table_ids=route_table_ids,
            tags={"Name": f"{name}-s3"},
        )
        self.ready: Sequence[ITerraformDependable] = [endpoint]


class InterfaceEndpoints(CheckedConstruct):
    """AWS's APIs at private addresses, with the names that they have everywhere; each is paid by the hour.

    They have a security group of their own, which members of the nodes' group reach on port 443.
    https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html

    Args:
        subnet_ids: one of each zone at most.
        services: ``ssm``, ``ecr.api``, …; ``standard`` stands for all that nodes ask of AWS.

    Raises:
        InvalidArgumentsError: a service has another name; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        vpc_id: str,
        subnet_ids: Sequence[str],
        members_security_group_id: str,
        services: Sequence[str] = ("standard",),
    ) -> None:
        refuse(self, checks.interface_endpoints(services))
        super().__init__(scope, id_)
        region = DataRegion(self, "region").id
        group = SecurityGroup(
            self,
            "group",
            name_prefix=f"{name}-endpoints-",
            description="Endpoints of AWS's APIs",
            vpc_id=vpc_id,
            tags={"Name": f"{name}-endpoints"},
        )
        rule = VpcSecurityGroupIngressRule(
            self,
            "ingress_from_members",
            security_group_id=group.id,
            referenced_security_group_id=members_security_group_id,
            ip_protocol="tcp",
            from_port=facts.HTTPS_PORT,
            to_port=facts.HTTPS_PORT,
            description="AWS's APIs for members of the cluster",
        )
        endpoints = [
            VpcEndpoint(
                self,
                service,
                vpc_id=vpc_id,
                service_name=_service_name(region, service),
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=subnet_ids,
                security_group_ids=[group.id],
                tags={"Name": f"{name}-{service}"},
            )
            for service in checks.endpoint_services(services)
        ]
        self.ready: Sequence[ITerraformDependable] = [rule, *endpoints]


def _service_name(region: str, service: str) -> str:
    return f"com.amazonaws.{region}.{service}"
