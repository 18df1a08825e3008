"""Sick compute nodes: each reports its findings, and the controller lets HyperPod reboot or replace some.

A node's report is the comment that Slurm keeps for it, so nothing but Slurm has to work. One controller decides, the
one in control, because it knows how many nodes are out already. HyperPod acts on a node that fails with one of two
reasons:
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-replace-faulty-instance.html
"""
