"""Policies trained with per-step rewards."""

from prm_jax.rl.text_rewards import reward_fn

__all__ = ['reward_fn']
