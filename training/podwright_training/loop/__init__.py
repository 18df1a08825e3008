"""The training loop and its helpers: guard, schedule, timing, metrics."""
