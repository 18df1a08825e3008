"""``podwright explain FILE``: what will exist, what talks to what, and what it costs by the hour."""
