"""Restart, back up, restore, migrate and replay a run."""
