"""Show a simulated fleet on a real dashboard."""
