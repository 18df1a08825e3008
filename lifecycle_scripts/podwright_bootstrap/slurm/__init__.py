"""Slurm: its configuration, accounts, database, and what it runs around a job."""
