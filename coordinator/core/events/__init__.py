"""Define the events that the core handles and the actions that it returns, as plain data."""
