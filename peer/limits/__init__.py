"""Decide what the owner's limits allow at this moment."""
