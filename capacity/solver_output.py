"""Keeps what a solver prints off standard output.

HiGHS writes a debug line of its own from ``scipy.optimize.milp`` in rare cases
(``HighsMipSolverData::transformNewIntegerFeasibleSolution``), by C's stdio, whatever ``disp`` says. Standard output
carries ``--json`` documents, so file descriptor 1 is made to point at standard error for as long as the solver runs.
That holds for the whole process: another thread's prints go to standard error too during these fractions of a second.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDOUT, STDERR = 1, 2

_one_at_a_time = threading.Lock()


@contextmanager
def off_stdout() -> Iterator[None]:
    """Whatever C code prints within goes to standard error; where there is no standard output, nothing changes."""
    with _one_at_a_time:
        _flush()
        try:
            kept = os.dup(STDOUT)
        except OSError:  # closed, as in a daemon
            yield
            return
        try:
            os.dup2(STDERR, STDOUT)
            yield
        finally:
            _flush()
            os.dup2(kept, STDOUT)
            os.close(kept)


def _flush() -> None:
    """Python's buffer and C's: what is in them was printed before, or belongs to where it points now."""
    with suppress(ValueError, OSError, AttributeError):
        sys.stdout.flush()
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)
