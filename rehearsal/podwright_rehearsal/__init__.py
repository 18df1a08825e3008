"""The cloud and the cluster on one machine."""
