"""Define the commands that work on a run's folder: its results, its records, its copies."""
