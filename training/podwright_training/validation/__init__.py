"""Measure a cluster's nodes and the network between them, in one Slurm job.

`podwright validate` sends this package as one zip file and runs it with any Python that has torch. Only
``all_reduce`` and ``gpus`` import torch, on the nodes.
"""
