"""Multiply activations with kernels in the configured precision."""
