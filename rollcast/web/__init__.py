"""Serve the static files that both screens are made of: our own and two libraries."""
