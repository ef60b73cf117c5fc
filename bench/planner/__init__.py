"""Measure the capacity planner: its plans, their bounds and bills, and its speed."""
