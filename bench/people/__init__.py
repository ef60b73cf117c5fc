"""Measure what people see and wait for: pages, commands, the donor's limits, the first join."""
