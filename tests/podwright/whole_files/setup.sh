#!/bin/sh
# The script of nodes.hooks in created.yaml.
true
