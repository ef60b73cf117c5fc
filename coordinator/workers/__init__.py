"""Run child processes that are spoken to in JSON lines, and load what users bring into them."""
