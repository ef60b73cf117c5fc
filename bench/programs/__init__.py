"""Programs that a benchmark starts in place of a role's own: the real role with one part exchanged."""
