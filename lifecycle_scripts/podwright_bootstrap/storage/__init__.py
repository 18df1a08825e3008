"""Disks, mounts, and files that many hosts share."""
