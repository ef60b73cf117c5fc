"""Choose the best transport for each neighbour."""
