"""Join and leave a run, and run as a service."""
