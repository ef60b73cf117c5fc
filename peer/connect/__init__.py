"""Wire all ways of being reached into one component."""
