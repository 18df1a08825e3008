"""Keys of cluster.yaml that have another name now, so that an error can say which."""

# The key's path under its former name, and its name of today.
RENAMED: dict[tuple[str | int, ...], str] = {
    ("lustre", "compression"): "data_compression_type",
    ("lustre", "version"): "file_system_type_version",
    ("nodes", "directory"): "ldap",
    ("nodes", "limits", "neighbours"): "neigh_gc_thresh3",
    ("openzfs", "compression"): "data_compression_type",
}
