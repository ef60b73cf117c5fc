"""Print every figure that the documentation quotes, each by one command: ``python -m bench NAME [--json]``."""
