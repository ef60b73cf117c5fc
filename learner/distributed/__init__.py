"""Run several processes as one learner."""
