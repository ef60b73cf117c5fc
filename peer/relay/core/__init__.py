"""Decide what the relay sends, requests and stores, without I/O."""
