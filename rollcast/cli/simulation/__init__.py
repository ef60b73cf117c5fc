"""Commands that simulate fleets on virtual time."""
