"""Measure what crashes, kills, power losses and load do to a run and its ledger."""
