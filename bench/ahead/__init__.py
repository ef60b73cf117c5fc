"""Compile the learner's step for accelerators that this machine does not have, and read what it needs there."""
