"""Policies trained with per-step rewards."""
