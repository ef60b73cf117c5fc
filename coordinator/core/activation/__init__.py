"""Decide which workers are switched on, and say why."""
