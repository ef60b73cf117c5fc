"""Compute what people see from the core's state."""
