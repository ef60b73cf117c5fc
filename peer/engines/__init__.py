"""Generate rollouts: the engines behind one interface."""
