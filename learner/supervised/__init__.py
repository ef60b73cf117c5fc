"""Train on examples before RL: on a file of chats or completions, or on the answers of a task."""
