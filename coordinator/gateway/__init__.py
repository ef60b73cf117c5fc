"""The gateway process: it serves the sessions and uploads of peers for a core that another process runs."""
