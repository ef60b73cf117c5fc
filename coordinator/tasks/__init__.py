"""Define tasks: the source of problems and the checks of answers, behind one interface.

checks/task.py defines what a task is; build.py makes one from configuration; mixture.py turns it into an endless stream
of training prompts with a position that can be saved, and into held-out problems that are never trained on.
"""
