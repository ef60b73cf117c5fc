"""Supervised training from a file of chats or completions, before a run of RL begins with its result."""
