"""Plan the relays of versions, and measure links and dissemination."""
