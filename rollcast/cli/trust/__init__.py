"""Define the commands about what peers are accused of."""
