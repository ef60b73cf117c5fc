"""A small geo-distributed network on one machine: namespaces, a userspace emulator of access links, scenarios."""
