"""Run one rank of a large job on one CPU: the trainer's own step, on tensors without memory."""
