"""Plant bugs that the simulator must find."""
