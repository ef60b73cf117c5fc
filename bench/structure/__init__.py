"""Measure how easily code is found and followed: folders, imports, and file borders on the way of an event."""
