"""Try tasks: draw problems, answer them, and see how they are scored."""
