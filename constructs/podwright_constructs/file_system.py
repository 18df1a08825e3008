"""Shared parts of FSx file systems."""

from __future__ import annotations

from podwright_constructs.kit import TerraformResourceLifecycle

# FSx does not report security groups, so after `terraform import` they look changed, and a change means a new, empty
# file system. They are fixed once the file system exists anyway.
KEEP_SECURITY_GROUPS = TerraformResourceLifecycle(ignore_changes=["security_group_ids"])
