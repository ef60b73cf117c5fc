"""Provide programs that a benchmark starts in place of a role's own: the real role with one component exchanged."""
