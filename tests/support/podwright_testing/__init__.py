"""What tests and benchmarks share and no wheel carries: faults of hosts, stacks under Terraform itself."""
