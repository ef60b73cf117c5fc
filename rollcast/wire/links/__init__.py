"""Frame and carry chunks over TLS streams."""
