"""Receive, store and relay versions."""
