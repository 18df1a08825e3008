"""The cloud and the cluster on one machine.

``aws`` emulates the account; ``hosts`` and ``clusters`` emulate the nodes. Neither imports the other: ``run`` deploys
the user's stacks into the account and starts a host for each node.
"""
