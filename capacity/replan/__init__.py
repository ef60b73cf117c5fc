"""Plan again during a run."""
