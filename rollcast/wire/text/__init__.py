"""Turn text into tokens and back."""
