"""Elastic runs: an agent on each host forms the job anew whenever hosts come and go. ``docs/how_to/elastic.md``."""
