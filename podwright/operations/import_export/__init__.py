"""Write settings for a cluster that podwright did not make, and AWS's request for settings."""
