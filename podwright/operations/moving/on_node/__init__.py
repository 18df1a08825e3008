"""Programs that a move sends to a controller, where root runs them: Python 3.8, the standard library, one file each.

Each prints lines while it works, and one line of JSON in the end.
"""
