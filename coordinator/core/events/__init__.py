"""Define what the core is told and what it asks for, as plain data."""
