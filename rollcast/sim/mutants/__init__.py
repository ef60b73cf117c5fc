"""Planted bugs: what a simulation that is worth its time must find."""
