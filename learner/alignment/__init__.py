"""Compare log-probabilities of the learner with those of the engines."""
