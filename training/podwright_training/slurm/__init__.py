"""Slurm jobs that train: facts of the nodes, the plan of a job, its batch script and submission."""
