"""Decide how old a rollout may be, and keep epochs apart."""
