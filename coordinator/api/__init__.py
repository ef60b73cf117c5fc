"""Answer HTTP requests: one module per group of routes."""
