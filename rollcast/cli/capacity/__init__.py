"""Define `rollcast capacity`."""
