"""Defines what all packages use: errors, paths, processes, checkpoints."""
