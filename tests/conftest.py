"""For all tests."""

from hypothesis import settings

# How fast a machine is, is no property of the code.
settings.register_profile("podwright", deadline=None)
settings.load_profile("podwright")
