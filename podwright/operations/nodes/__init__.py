"""Change nodes and instance groups through SageMaker's API, and drain nodes in Slurm."""
