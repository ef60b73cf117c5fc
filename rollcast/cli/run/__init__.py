"""Define the commands that work on a run."""
