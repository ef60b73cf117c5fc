"""Define the commands that prepare data, and train on it before a run."""
