"""Compiles a config's programs for TPUs or GPUs, on a machine without them."""
