"""Declare every setting of the coordinator process."""
