"""Train the policy: the process and its loop."""
