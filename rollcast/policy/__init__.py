"""Define the model that the learner trains and the peers run, and its precision flow."""
