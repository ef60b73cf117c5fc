"""Rollcast: reinforcement-learning post-training of language models on far-apart machines."""

__version__ = "0.1.0"

#: Range of protocol versions this software speaks; both sides pick the highest in common.
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
