"""Where problems come from and how answers are checked, behind one interface.

adapter.py says what a task is; build.py makes one from configuration; mixture.py turns it into an endless stream of
training prompts with a position that can be saved, and into held-out problems that are never trained on.
"""
