"""Put a real coordinator process under load from synthetic peers and a synthetic learner that record which
rollouts were acknowledged."""
