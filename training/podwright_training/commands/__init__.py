"""``podwright-train COMMAND``: one module per command."""
