"""Programs that a move sends to a controller, where root runs them: Python 3.8, the standard library, one file each.

Each prints lines while it works, and one line of JSON in the end. Each takes its lock by itself: the node's copy of
``podwright_common`` may be of another version, or missing.
"""
