"""Turn leases into rollouts and upload them."""
