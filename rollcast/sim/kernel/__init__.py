"""Simulate time, the network, disks and processes."""
