"""Account for the learner's wall time: each second of a life has one cause, and a step's parts add up to the step."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import jax.monitoring

#: ``steps`` is time spent on new batches, ``replay`` on batches that had been recorded before this life.
Cause = Literal["starting", "warm_start", "evaluating", "publishing", "steps", "replay", "finishing"]
#: The measured parts of a step; the rest of it is ``other_s``.
STEP_PARTS = ("wait_s", "behaviour_s", "train_s", "compile_s", "publish_s", "checkpoint_s")

_COMPILE_EVENTS = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")

Seconds = Callable[[], float]


class CompileTime:
    """Seconds that jax has spent on compiling, on any thread, since this object was created."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **_more: object) -> None:
        if event in _COMPILE_EVENTS:
            self.seconds += duration_secs


@functools.cache
def _compile_time() -> CompileTime:
    return CompileTime()  # one per process, because jax keeps its listeners for ever


def compiled_s() -> float:
    """Return the seconds that this process has spent on compiling."""
    return _compile_time().seconds


class WallTime:
    """The wall time of one life by cause; time spent on compiling counts as ``compile``, not as any other cause.

    Args:
        now: returns monotonic seconds.
        compiled: returns the seconds spent on compiling so far.
        unix: returns the wall clock, which identifies a life.
    """

    def __init__(
        self, now: Seconds = time.monotonic, compiled: Seconds = compiled_s, unix: Seconds = time.time
    ) -> None:
        self._now, self._compiled = now, compiled
        self._began_unix_s = unix()
        self._since_s, self._compiled_before_s = now(), compiled()
        self._seconds = dict.fromkeys((*get_args(Cause), "compile"), 0.0)

    def spent(self, cause: Cause) -> None:
        """Assign the time since the last call, or since the start, to this cause."""
        now_s, compiled_now_s = self._now(), self._compiled()
        passed_s = now_s - self._since_s
        compile_s = min(passed_s, compiled_now_s - self._compiled_before_s)
        self._seconds[cause] += passed_s - compile_s
        self._seconds["compile"] += compile_s
        self._since_s, self._compiled_before_s = now_s, compiled_now_s

    def figures(self) -> dict[str, float]:
        """Return ``life_began_unix_s``, ``life_s``, and the ``life_*_s`` values that add up to it."""
        return {"life_began_unix_s": self._began_unix_s, "life_s": sum(self._seconds.values())} | {
            f"life_{name}_s": seconds for name, seconds in self._seconds.items()
        }


class StepTime:
    """The parts of one step's wall time.

    Args:
        now, compiled: see WallTime.
    """

    def __init__(self, now: Seconds = time.monotonic, compiled: Seconds = compiled_s) -> None:
        self._now, self._compiled = now, compiled
        self._began_s = now()
        self._parts = dict.fromkeys(STEP_PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Assign the body's time to this part, except for the time that jax compiles meanwhile."""
        began_s, compiled_before_s = self._now(), self._compiled()
        try:
            yield
        finally:
            passed_s = self._now() - began_s
            compile_s = min(passed_s, self._compiled() - compiled_before_s)
            self._parts[name] += passed_s - compile_s
            self._parts["compile_s"] += compile_s

    def end(self) -> dict[str, float]:
        """Return the parts, ``other_s`` and their sum ``step_s``, and start the next step."""
        ended_s = self._now()
        step_s = ended_s - self._began_s
        values = self._parts | {"other_s": step_s - sum(self._parts.values()), "step_s": step_s}
        self._began_s, self._parts = ended_s, dict.fromkeys(STEP_PARTS, 0.0)
        return values
