"""A real coordinator process under load from synthetic peers and a synthetic learner, and what they remember."""
