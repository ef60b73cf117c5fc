"""Generate tokens with continuous batching over a paged cache."""
