"""One YAML file in, a HyperPod Slurm cluster and a trained language model out."""
