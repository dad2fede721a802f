"""Process reward models in JAX: score every step of a reasoning chain."""
