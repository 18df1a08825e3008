"""Submit, list, cancel and follow Slurm's jobs, and fetch the results of runs."""
