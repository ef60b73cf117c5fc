"""Trace what devices and host compute with jax.profiler, for XProf, TensorBoard and Perfetto."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax

ResultT = TypeVar("ResultT")

#: Errors of jax's profiler: another trace is under way, or a folder cannot be written.
TRACE_ERRORS = (RuntimeError, ValueError, OSError)


def begin_trace(folder: Path, *, python_tracer: bool) -> None:
    """Begin to trace this process, into a folder of its own below ``folder``.

    Args:
        python_tracer: whether to trace every Python call. It slows the host down and makes traces many times larger.

    Raises:
        RuntimeError, ValueError, OSError: see TRACE_ERRORS.
    """
    own = folder / f"process-{jax.process_index()}"
    own.mkdir(parents=True, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python_tracer)
    options.raise_error_on_start_failure = True
    # Perfetto reads no other file of the trace.
    jax.profiler.start_trace(own, create_perfetto_trace=True, profiler_options=options)


def traced_step(step: int, work: Callable[[], ResultT]) -> ResultT:
    """Do the work of a step under its number, by which a trace's figures are listed; without a trace this is free."""
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        return work()


def end_trace() -> None:
    """End this process's trace, and write it.

    Raises:
        RuntimeError, ValueError, OSError: see TRACE_ERRORS.
    """
    jax.profiler.stop_trace()
