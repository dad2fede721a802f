"""Runs the six jobs: from a checked config to results in a workdir."""
