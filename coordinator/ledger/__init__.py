"""Define the durable store of rollouts, scores, batches and events: its interface, its statements, its bounds."""
