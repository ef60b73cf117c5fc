"""Predict what a set of workers will make of a run."""
