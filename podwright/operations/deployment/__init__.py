"""Deploy and destroy with the CDK command and Terraform: plan, loss guard, boots, state, locks, adoption, IAM."""
