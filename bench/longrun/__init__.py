"""Run a whole fleet in an emulated network for a long time, disturb it and watch it."""
