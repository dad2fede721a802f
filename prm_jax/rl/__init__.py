"""Trains policies with per-step rewards.

schedule -> loop: pipeline (episodes, rating, views, implicit)
  -> rewards -> credit, advantages -> objective, losses -> train steps
hacking_watch evaluates the policy during training; text_rewards is for other
libraries
"""

from prm_jax.rl.text_rewards import reward_fn

__all__ = ['reward_fn']
