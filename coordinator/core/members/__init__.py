"""Keep track of the members and of what the learner reports."""
