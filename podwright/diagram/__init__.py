"""``podwright explain FILE``: resources of a settings file, their connections and their cost per hour."""
