"""Join a run: from an invite to an open session."""
