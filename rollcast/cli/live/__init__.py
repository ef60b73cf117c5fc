"""Define the commands that watch and steer a running run through its coordinator."""
