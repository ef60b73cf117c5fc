"""Provide what every process needs: configuration, errors, logging, metrics, the run folder."""
