"""The account and region of a deployment, which Terraform's state records with the first one.

A plan with another account or region would show all resources as gone, so it fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constructs import Construct

from podwright.settings.root import Settings
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.kit import Fn, Postcondition, TerraformLocal, TerraformResource, TerraformResourceLifecycle

ID = "state_owner"


class StateOwnerRecord(TerraformResource):
    """Fails every plan with another account or region than the state's: to Terraform all its resources would be gone.

    Terraform does not evaluate postconditions when it destroys; ``account_id`` in the settings makes the provider
    refuse other credentials there too.
    https://developer.hashicorp.com/terraform/language/resources/terraform-data

    Args:
        scope: the stack.
        settings: what to deploy.
    """

    TF_RESOURCE_TYPE = "terraform_data"

    def __init__(self, scope: Construct, *, settings: Settings) -> None:
        caller = DataCallerIdentity(scope, "state_caller")
        values = {"account": caller.account_id, "region": settings.region}
        now = TerraformLocal(scope, f"{ID}_values", Fn.jsonencode(values))
        refusal = Postcondition(
            condition=f"${{self.output == null || self.output == local.{now.friendly_unique_id}}}",
            error_message=(
                f"The state of {settings.name} is of ${{self.output}}, and this plan is for "
                f"${{local.{now.friendly_unique_id}}}. Use that account's credentials and that region, or deploy from "
                "another folder, or under another name."
            ),
        )
        super().__init__(
            scope,
            ID,
            terraform_resource_type=self.TF_RESOURCE_TYPE,
            lifecycle=TerraformResourceLifecycle(ignore_changes=["input"], postcondition=[refusal]),
        )
        self._values = now

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return {"input": self._values.as_string}
