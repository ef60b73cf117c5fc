"""Run a sink that may be slow or fail on its own thread: the run never waits for it, nor ends because of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from coordinator.metrics.sinks.sink import Sink

log = structlog.get_logger()

STEPS_QUEUED_MAX = 1024  # steps that may wait for a slow sink; further ones are left out
FAILURES_MAX = 20  # failures in a row, after which the sink is given up
CLOSE_DEADLINE_S = 10.0


class BackgroundSink:
    """Creates the sink on its thread. Steps that find the queue full are left out, and counted in the log.

    Args:
        make: creates the sink; may take seconds, and may fail.
    """

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self.name = name
        self._make = make
        self._steps: queue.Queue[tuple[int, Mapping[str, Any]] | None] = queue.Queue(STEPS_QUEUED_MAX)
        self._left_out = 0
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Queue a step and return at once."""
        try:
            self._steps.put_nowait((step, dict(values)))
        except queue.Full:
            self._left_out += 1
            if self._left_out & (self._left_out - 1) == 0:  # at 1, 2, 4, 8 ...
                log.warning("a metrics sink is too slow: steps are left out", sink=self.name, steps=self._left_out)

    def close(self) -> None:
        """Wait up to CLOSE_DEADLINE_S seconds for the queued steps."""
        try:
            self._steps.put(None, timeout=CLOSE_DEADLINE_S)
        except queue.Full:
            pass
        else:
            self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            log.warning("a metrics sink did not end in time: its last steps may be missing", sink=self.name)

    def _work(self) -> None:
        try:
            sink = self._make()
        except Exception as error:
            log.warning(
                "a metrics sink cannot be opened: the run continues without it", sink=self.name, cause=str(error)
            )
            self._drain()
            return
        failures = 0
        while (item := self._steps.get()) is not None:
            failures = 0 if self._wrote(sink, *item) else failures + 1
            if failures >= FAILURES_MAX:
                log.warning("a metrics sink fails repeatedly: the run continues without it", sink=self.name)
                self._drain()
                return
        try:
            sink.close()
        except Exception as error:
            log.warning("a metrics sink could not be closed", sink=self.name, cause=str(error))

    def _wrote(self, sink: Sink, step: int, values: Mapping[str, Any]) -> bool:
        try:
            sink.write(step, values)
        except Exception as error:
            log.warning("a metrics sink failed", sink=self.name, step=step, cause=str(error))
            return False
        return True

    def _drain(self) -> None:
        """Discard steps, so that writers never find the queue full."""
        while self._steps.get() is not None:
            pass
