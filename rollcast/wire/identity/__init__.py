"""Prove who is who: keys, certificates, TLS."""
