"""Turn a run folder into one file that people read."""
