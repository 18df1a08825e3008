"""Code that tests and benchmarks share; no wheel has it."""
