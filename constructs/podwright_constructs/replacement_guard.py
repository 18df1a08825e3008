"""A refusal to replace a resource because of an edit; destroying it stays possible.

It protects the cluster, whose stack may be destroyed every night. For a cluster the properties are those that AWS's
schema calls ``createOnly``; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from constructs import Construct

from podwright_constructs.bindings import without_none
from podwright_constructs.construct import CheckedBeforeMade, Immutable
from podwright_constructs.kit import (
    Fn,
    ITerraformDependable,
    Postcondition,
    TerraformLocal,
    TerraformResource,
    TerraformResourceLifecycle,
)


class ReplacementGuard(Immutable, TerraformResource, metaclass=CheckedBeforeMade):
    """Keeps a resource's arguments in Terraform's state, and fails every plan that would change them.

    ``prevent_destroy`` would refuse ``destroy`` too; Terraform does not evaluate postconditions when it destroys. The
    guard is made after the resource, so a creation that failed is tried again with other values.
    https://developer.hashicorp.com/terraform/language/resources/terraform-data

    Args:
        scope: The scope of the construct.
        id_: The id of the construct.
        resource: What is guarded.
        properties: Values of it that AWS cannot change.
        consequence: What a replacement does, for the message.
    """

    TF_RESOURCE_TYPE = "terraform_data"

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        resource: ITerraformDependable,
        properties: Mapping[str, Any],
        consequence: str,
    ) -> None:
        now = TerraformLocal(scope, f"{id_}_values", Fn.jsonencode(without_none(properties)))
        # An older version of the construct may have recorded more properties than are compared today.
        unchanged = (
            f"[for name in {json.dumps(list(properties))} : jsonencode(try(jsondecode(self.output)[name], null)) "
            f"== jsonencode(try(jsondecode(local.{now.friendly_unique_id})[name], null))]"
        )
        refusal = Postcondition(
            condition=f"${{self.output == null || alltrue({unchanged})}}",
            error_message=(
                f"An edit of {', '.join(properties)} needs a new resource, which {consequence}. It was made with "
                "${self.output}. Undo the edit, or destroy the stack and deploy it again."
            ),
        )
        super().__init__(
            scope,
            id_,
            terraform_resource_type=self.TF_RESOURCE_TYPE,
            depends_on=[resource],
            lifecycle=TerraformResourceLifecycle(ignore_changes=["input"], postcondition=[refusal]),
        )
        self._values = now

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return {"input": self._values.as_string}
