"""Hold the core's state, and decide what each event does to leases, rollouts and batches."""
