"""Memory, speed, days and dollars of a training run, before the first node starts. Standard library only."""
