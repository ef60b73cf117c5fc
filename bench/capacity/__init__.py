"""Hold baselines and recorded data that only the planner's benchmarks compare with."""
