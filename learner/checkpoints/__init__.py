"""Save and restore the exact state of training."""
