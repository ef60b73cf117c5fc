"""Keep the evidence against peers, and replay it."""
