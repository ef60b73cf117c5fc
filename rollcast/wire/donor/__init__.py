"""Connect the commands of a machine's owner with the peer's processes there: a socket, and how the last one ended."""
