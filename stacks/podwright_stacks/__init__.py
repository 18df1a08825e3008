"""The two Terraform stacks: what you keep, and what you may destroy tonight."""
