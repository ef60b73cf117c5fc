"""What the dashboard shows, as plain data made of the core's state: pure, and cheap for a thousand members."""
