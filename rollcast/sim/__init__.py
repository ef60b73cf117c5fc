"""Simulate a fleet deterministically: every role's real cores on virtual time, a simulated network, disks that lose
writes."""
