"""Code that podwright's distributions share: standard library only, Python 3.8 and later, as nodes run it too."""
