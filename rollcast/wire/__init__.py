"""Define what crosses the network: ids, limits, messages."""
