"""Elastic runs: an agent on each host forms the job anew when hosts join or leave. ``docs/how_to/elastic.md``."""
