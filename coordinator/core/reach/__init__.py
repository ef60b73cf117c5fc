"""Keep what is known of addresses, NATs and failed connections."""
