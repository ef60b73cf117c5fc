"""Estimate what fits on which hardware."""
