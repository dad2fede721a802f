"""Serves every room: errors, paths, processes, devices, checkpoints."""
