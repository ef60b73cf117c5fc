"""Kernels for the units of GPUs and TPUs, and the same computations in plain XLA."""
