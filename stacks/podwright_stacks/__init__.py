"""The two Terraform stacks: the foundation, which you keep, and the cluster, which you may destroy tonight."""
