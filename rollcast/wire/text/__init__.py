"""Turn text into tokens and back, and read it from files."""
