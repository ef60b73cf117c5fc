"""Run a worker: relay versions and generate rollouts on a donor's machine."""
