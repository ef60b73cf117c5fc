"""Finding out how this machine can be reached, and helping others to find out how they can."""
