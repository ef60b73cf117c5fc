"""Start workers as local processes, over SSH or through SkyPilot."""
