"""Measure how well a run adapts its workers when machines come, go and change their prices."""
