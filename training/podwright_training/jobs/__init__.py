"""Anybody's trainer: the contract of job.yaml, the script that starts it, and its log as metrics."""
