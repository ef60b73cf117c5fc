"""Punch TCP holes through routers."""
