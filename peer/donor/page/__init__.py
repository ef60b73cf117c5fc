"""Serve the owner's page."""
