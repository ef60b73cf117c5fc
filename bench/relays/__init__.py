"""Simulate broadcasts among real relay cores in a simulated network: more peers than one machine can run."""
