"""Measure nodes, network and shared file system, and name slow ones."""
