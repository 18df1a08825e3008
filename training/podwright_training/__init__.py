"""FSDP pre-training of Llama-family models on Slurm clusters."""
