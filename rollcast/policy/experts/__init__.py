"""Route tokens to experts and compute them: the feed-forward layer of a mixture of experts."""
