"""Reach a node: Session Manager sessions, ssh, forwarded ports."""
