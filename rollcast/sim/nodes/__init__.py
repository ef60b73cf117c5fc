"""Run the roles' real cores as simulated processes."""
