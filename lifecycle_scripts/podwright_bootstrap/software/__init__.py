"""Programs and packages that a node installs."""
