"""Commands for cluster.yaml: ``init`` writes it, ``check`` judges it, ``explain`` and ``schema`` describe it."""
