"""Measure the capacity planner, its predictions and its replanning."""
