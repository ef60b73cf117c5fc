"""Simulate the coordinator's ledger."""
