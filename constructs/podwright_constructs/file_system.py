"""Shared parts of FSx file systems.

``on_destroy: retain`` is Terraform's ``prevent_destroy``, because no list of arguments that replace a file system would
be complete: they depend on the provider's version. It also stops ``cdktf destroy``, with a message of Terraform that
names the resource; ``podwright destroy`` works around what is kept.
"""

from __future__ import annotations

from podwright_constructs.kit import TerraformResourceLifecycle

# FSx does not report security groups, so after `terraform import` they look changed, and a change means a new, empty
# file system. They are fixed once the file system exists anyway.
KEPT = ["security_group_ids"]


def lifecycle(on_destroy: str) -> TerraformResourceLifecycle:
    """Return Terraform's lifecycle rules of a file system."""
    return TerraformResourceLifecycle(ignore_changes=KEPT, prevent_destroy=True if on_destroy == "retain" else None)
