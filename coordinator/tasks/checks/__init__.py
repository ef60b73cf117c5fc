"""Define what a task is, and check answers."""
