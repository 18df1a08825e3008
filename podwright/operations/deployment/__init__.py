"""Deploy and destroy with the kit and Terraform: the plan, the guard, the boots, the state, the deployer's rights."""
