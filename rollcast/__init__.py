"""Rollcast: reinforcement-learning post-training of language models on far-apart machines."""

__version__ = "0.1.0"
