"""Compiles the programs of a config for a TPU, on a machine without one."""
