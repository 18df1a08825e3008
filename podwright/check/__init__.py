"""``podwright check``: read a settings file and report every problem at once."""
