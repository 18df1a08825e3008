"""Describe a real cluster's node image and the service's behaviour, without anything private, for comparison."""
