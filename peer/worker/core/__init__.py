"""Decide what the worker generates, keeps and uploads, without I/O."""
