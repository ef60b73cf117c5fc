"""Evaluate checkpoints (pass@k) and export them."""
