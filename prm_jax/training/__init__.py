"""Trains models: losses, the optimizer, the train state, the train loop."""
