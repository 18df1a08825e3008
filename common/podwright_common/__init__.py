"""Code that podwright's distributions share: Python 3.8 and later, as nodes run it too.

Only ``yaml_document`` (PyYAML) and ``drawing`` (rich) need more than the standard library; nodes load neither.
"""
