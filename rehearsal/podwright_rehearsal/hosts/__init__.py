"""Hosts on one machine: Linux namespaces, a node image and the small programs that run in them."""
