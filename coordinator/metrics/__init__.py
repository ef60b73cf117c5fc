"""Export the coordinator's state as Prometheus series."""
