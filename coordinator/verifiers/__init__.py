"""Score rollouts in a bounded, restartable pool of processes."""
