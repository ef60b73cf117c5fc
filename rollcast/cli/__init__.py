"""Define the command line: one run on this machine, and what all commands share."""
