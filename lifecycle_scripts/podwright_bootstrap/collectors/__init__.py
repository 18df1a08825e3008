"""Metrics that nodes collect as files for node_exporter: accelerators, EFA, Slurm, training runs.

Installed on every node, apart from the boot; the standard library alone. Each module has one ``collect()``.
"""
