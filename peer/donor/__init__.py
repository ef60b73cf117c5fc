"""Keep the owner in charge: the daemon, its reports and its updates."""
