"""Compare what the planner estimates and predicts with simulations, real runs and published measurements."""
