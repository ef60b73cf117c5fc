"""Fetch a teacher's log-probabilities from a server. A teacher that the learner holds itself is in learner/training."""
