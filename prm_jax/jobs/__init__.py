"""Runs the seven jobs: from a checked config to results in a workdir."""
