"""Runs that last: a whole fleet in an emulated network, disturbed and watched."""
