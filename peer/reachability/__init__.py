"""Find out how this machine can be reached, and help other peers to find out how they can."""
