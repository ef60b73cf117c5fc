"""Make one optimiser step on a mesh of devices."""
