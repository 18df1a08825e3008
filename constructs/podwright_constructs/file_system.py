"""What FSx's file systems have in common."""

from __future__ import annotations

from cdktf import TerraformResourceLifecycle

# FSx tells nobody the security groups, so after `terraform import` they look like others, and others mean a new, empty
# file system. They cannot be changed on one that exists anyway.
KEEP_SECURITY_GROUPS = TerraformResourceLifecycle(ignore_changes=["security_group_ids"])
