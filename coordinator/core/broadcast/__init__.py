"""Plan who relays a version to whom, and measure links and dissemination."""
