"""Decide which workers are switched on, and give each a reason."""
