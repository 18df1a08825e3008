"""Slurm clusters on one machine: in namespaces, or as plain processes."""
