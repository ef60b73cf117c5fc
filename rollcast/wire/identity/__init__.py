"""Prove identities: keys, certificates, TLS."""
