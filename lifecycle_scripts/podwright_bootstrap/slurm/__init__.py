"""Slurm: its configuration, accounts, database, prolog and epilog."""
