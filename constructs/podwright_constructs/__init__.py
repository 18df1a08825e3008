"""CDK-for-Terraform constructs for SageMaker HyperPod Slurm clusters; import the module that owns the noun you need."""
