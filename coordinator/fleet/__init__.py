"""Start and stop workers at providers for this run."""
