"""Encryption key and IAM role of the settings file."""

from typing import Literal

from pydantic import Field

from podwright.settings.section import Section


class CreatedKey(Section):
    """A KMS key for everything that keeps data, which KMS rotates every year."""

    source: Literal["create"] = Field(description="A new key.")


class ExistingKey(Section):
    """An existing KMS key; its policy must admit CloudWatch Logs, EventBridge and, through IAM, the nodes' role."""

    source: Literal["existing"] = Field(description="An existing key.")
    arn: str = Field(description="Its ARN, arn:aws:kms:REGION:ACCOUNT:key/ID.")


class NoKey(Section):
    """Encryption with each service's own key."""

    source: Literal["none"] = Field(description="No key of yours: S3 and FSx encrypt with keys of their own.")


class Condition(Section):
    """A condition of a statement, in the words of Terraform's aws_iam_policy_document."""

    test: str = Field(description="Operator, such as StringEquals.")
    variable: str = Field(description="Condition key, such as aws:ResourceAccount.")
    values: tuple[str, ...] = Field(description="Values; one of them must match.")


class Statement(Section):
    """Additional permissions of nodes; jobs have them, too."""

    actions: tuple[str, ...] = Field(description="Actions, such as s3:GetObject.")
    resources: tuple[str, ...] = Field(description="ARNs, or *.")
    conditions: tuple[Condition, ...] = Field((), description="Conditions that must all hold. Default: no condition.")


class CreatedRole(Section):
    """An IAM role for each kind of node, which reads this cluster's scripts and cannot change them."""

    source: Literal["create"] = Field(description="New roles.")
    permissions_boundary_arn: str | None = Field(
        None, description="ARN of the permissions boundary of all roles, where your organisation requires one."
    )
    path: str | None = Field(None, description="IAM path of all roles, such as /teams/llm/. Default: /.")
    policy_arns: tuple[str, ...] = Field(
        (), description="ARNs of additional managed policies of the nodes. Default: no additional policy."
    )
    statements: tuple[Statement, ...] = Field(
        (), description="Additional permissions of the nodes. Default: no additional permission."
    )


class ExistingRole(Section):
    """Existing IAM roles, with AmazonSageMakerClusterInstanceRolePolicy and the EC2 actions a custom VPC needs."""

    source: Literal["existing"] = Field(description="Existing roles.")
    arn: str = Field(description="ARN of the nodes' role, arn:aws:iam::ACCOUNT:role/NAME.")
    controller_arn: str | None = Field(None, description="ARN of the controllers' role. Default: arn.")
    login_arn: str | None = Field(None, description="ARN of the login nodes' role. Default: arn.")
    permissions_boundary_arn: str | None = Field(
        None,
        description="ARN of the permissions boundary of roles that podwright creates for flow logs and log retention.",
    )
    path: str | None = Field(None, description="IAM path of these roles, such as /teams/llm/. Default: /.")

    def arns(self) -> dict[str, str]:
        """Return the ARNs that the file has, by key."""
        keys = ("arn", "controller_arn", "login_arn")
        return {key: arn for key in keys if (arn := getattr(self, key))}


class AssumedRole(Section):
    """A role that Terraform and podwright's commands for deployments assume with your credentials."""

    role_arn: str = Field(description="Its ARN, arn:aws:iam::ACCOUNT:role/NAME.")
    external_id: str | None = Field(None, description="External id that the role's trust policy asks for.")
    session_name: str = Field("podwright", description="Name of the session in CloudTrail.")


class IgnoredTags(Section):
    """Tags that others set on the resources, such as a landing zone; Terraform does not remove them."""

    keys: tuple[str, ...] = Field((), description="Keys of these tags. Default: none.")
    key_prefixes: tuple[str, ...] = Field((), description="Beginnings of their keys, such as corp:. Default: none.")
