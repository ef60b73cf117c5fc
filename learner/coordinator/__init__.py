"""Talk to the coordinator."""
