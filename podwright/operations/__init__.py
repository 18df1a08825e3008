"""Commands for a cluster that runs, through boto3: one module per command, also for clusters podwright did not make.

Each subject is a package. Imports between the packages only go down, as import-linter checks.
"""
