"""Provide disks that lose power, PostgreSQL servers to stop and kill, and recorded changes for tests of a ledger."""
