"""Choose which workers to switch on so that the learner never waits, at the lowest cost."""
