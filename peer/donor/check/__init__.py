"""Answer `rollcast peer check`: is this machine fit, and what is missing."""
