"""Run the coordinator: membership, leases, staleness, relay plans, the ledger and the dashboard."""
