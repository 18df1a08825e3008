"""``cluster.yaml`` as types: sections, names that follow from it, and constructs' arguments."""
