"""Keeps what a solver prints off standard output.

HiGHS prints a debug line of its own from ``scipy.optimize.milp`` in rare cases
(``HighsMipSolverData::transformNewIntegerFeasibleSolution``), by C's stdio, whatever ``disp`` says. Standard output
carries ``--json`` documents.
"""

from __future__ import annotations

import ctypes

# glibc and macOS: the variables that puts and printf read. Turning file descriptor 1 instead would turn what other
# threads print meanwhile, too.
_STREAMS = (("stdout", "stderr"), ("__stdoutp", "__stderrp"))


def c_prints_to_stderr() -> None:
    """Let what C code prints go to standard error from now on, in this process; what Python prints stays as it is.

    Where C's library names its streams otherwise, nothing changes.
    """
    libc = ctypes.CDLL(None)
    for out, err in _STREAMS:
        try:
            stderr = ctypes.c_void_p.in_dll(libc, err)
            ctypes.c_void_p.in_dll(libc, out).value = stderr.value
        except ValueError:  # not a name of this library
            continue
        return
