"""Asks models on OpenAI-compatible servers; pays for each answer once."""
