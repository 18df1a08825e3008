"""What podwright's distributions share: standard library only, Python 3.8 and later, because nodes run it too."""
