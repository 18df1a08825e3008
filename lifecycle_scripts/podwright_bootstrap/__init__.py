"""The lifecycle of a HyperPod Slurm node: standard library only, Python 3.8 and later, run as root by on_create.sh."""
