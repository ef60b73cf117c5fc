"""Answer the questions that a person may ask of a plan."""
