"""Measure rollout engines: their speed, their agreement, and what a swap of versions costs."""
