"""Emulate a small geo-distributed network on one machine: namespaces, access links in user space, scenarios."""
