"""Submit, list, cancel and follow Slurm's jobs, and fetch what runs left."""
