"""The parts of ``podwright move``: its journal, the new settings file, backups, and programs for controllers."""
