"""Say how a cluster is: status, doctor, and drift from its settings."""
