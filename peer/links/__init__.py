"""Hold one chunk link to a neighbour: sockets, rates, addresses."""
