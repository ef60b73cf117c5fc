"""Define `rollcast peer`."""
