"""Fetch chunks from HTTPS servers and files, and publish to them."""
