"""Measure tasks of users' own: what a policy learns from environments, and that nothing is stolen, delayed or lost."""
