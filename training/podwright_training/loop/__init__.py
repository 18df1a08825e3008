"""The training loop and what it consults: guard, schedule, timing, metrics."""
