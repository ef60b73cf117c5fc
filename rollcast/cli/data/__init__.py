"""Define the commands that prepare data."""
