"""Start and stop rented workers within a budget, and account for their cost."""
