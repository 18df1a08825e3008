"""Checkpoints: written in the background, complete or absent, copied to S3."""
