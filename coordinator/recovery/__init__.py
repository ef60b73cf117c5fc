"""Restart, back up, restore and replay a run."""
