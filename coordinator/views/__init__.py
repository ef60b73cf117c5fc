"""Compute what the dashboard shows from the core's state, as plain data and cheaply for a thousand members."""
