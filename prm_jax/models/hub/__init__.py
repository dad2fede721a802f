"""Reads and writes the weights, configs and tokenizers of other libraries."""
