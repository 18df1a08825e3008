"""The steps of a rehearsal, and what they need."""
