"""Run a worker: relay versions and generate rollouts on somebody's machine."""
