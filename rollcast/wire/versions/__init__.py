"""Record, hash, encode and store versions and their chunks."""
