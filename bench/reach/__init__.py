"""Measure how peers behind routers reach each other."""
