"""The operating system: programs, files, units, addresses."""
