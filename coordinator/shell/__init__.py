"""Carry out the core's actions and feed the results back as events."""
