"""The deterministic simulator: every role's real cores on virtual time, a simulated network, disks that forget."""
