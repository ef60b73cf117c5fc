"""Define the command line: one run on this machine, and the components that all commands share."""
