"""Compute the loss: advantages, factors, aggregation and the presets of known algorithms."""
