"""The slots that a head lends to a cell. Pure."""
