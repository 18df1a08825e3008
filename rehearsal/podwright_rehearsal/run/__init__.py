"""The steps of a rehearsal, and their supplies."""
