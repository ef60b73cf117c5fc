"""Measure how fast a version reaches every peer, and what its encodings and links cost."""
