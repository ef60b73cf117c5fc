"""Sample the run's problems, tokenize them, score answers and keep samples."""
