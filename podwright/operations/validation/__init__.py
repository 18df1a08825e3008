"""Measure nodes, network and shared file system, and name what is slow."""
