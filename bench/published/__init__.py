"""Predict published runs of other trainers: what podwright's planner needs in addition to its own runs."""
