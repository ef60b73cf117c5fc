"""Trace the learner's next steps when the coordinator orders it, while the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import structlog

from learner.coordinator.profile_orders import ProfileOrders
from learner.training.tracing import TRACE_ERRORS, end_trace
from learner.training.trainer import Trainer
from rollcast.wire.proto import rollcast_pb2 as pb

ResultT = TypeVar("ResultT")

_log = structlog.get_logger()


@dataclass(slots=True)
class _Trace:
    order: pb.ProfileOrder
    folder: Path
    first_step: int
    steps_done: int = 0


class StepProfiler:
    """Begin and end traces between steps; leaving the context ends one that is under way.

    Errors of the profiler are reported to the coordinator, and training continues.

    Args:
        worker: one thread for all jax work.
        folder: the folder of all traces; each gets one of its own, named after its first step.

    Raises:
        ProcessFailed: raised by every method if another process of the learner was lost.
    """

    def __init__(self, trainer: Trainer, worker: Executor, folder: Path, orders: ProfileOrders) -> None:
        self._trainer = trainer
        self._worker = worker
        self._folder = folder.absolute()
        self._orders = orders
        self._trace: _Trace | None = None

    async def step_begins(self, step: int) -> None:
        """Begin a trace with this step if one is ordered."""
        order = self._orders.may_begin()
        if self._trace is not None or order is None:
            return
        self._trace = _Trace(order, _free_folder(self._folder, step), step)
        self._report()
        try:
            folder, python_tracer = self._trace.folder, order.python_tracer
            await self._on_worker(lambda: self._trainer.begin_trace(folder, python_tracer=python_tracer))
        except TRACE_ERRORS as error:
            with suppress(*TRACE_ERRORS):  # other processes may have begun
                await self._on_worker(self._trainer.end_trace)
            self._ended(f"the profiler did not start: {error}")

    async def step_ended(self) -> None:
        """Count the step, and end the trace if it has enough of them or the coordinator gave the profile up."""
        trace = self._trace
        if trace is None:
            return
        trace.steps_done += 1
        if trace.steps_done >= trace.order.steps:
            await self._end("")
        elif not self._orders.is_wanted(trace.order.profile_id):
            await self._end("the coordinator gave the profile up")
        else:
            self._report()

    async def __aenter__(self) -> StepProfiler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._trace is None:
            return
        if kind is None:
            await self._end("the learner stopped training")
            return
        # Other processes may be lost, or wait in the computation that failed: only this one's trace is ended.
        with suppress(*TRACE_ERRORS):
            await self._on_worker(end_trace)
        self._ended("training failed")

    async def _end(self, failure: str) -> None:
        try:
            await self._on_worker(self._trainer.end_trace)
        except TRACE_ERRORS as error:
            failure = f"the trace cannot be written: {error}"
        self._ended(failure)

    def _ended(self, failure: str) -> None:
        assert self._trace is not None
        size_bytes = sum(path.stat().st_size for path in self._trace.folder.rglob("*") if path.is_file())
        self._report(ended=True, size_bytes=size_bytes, failure=failure[:_FAILURE_LENGTH_MAX])
        _log.info("profile ended", folder=str(self._trace.folder), size_bytes=size_bytes, failure=failure)
        self._trace = None

    def _report(self, *, ended: bool = False, size_bytes: int = 0, failure: str = "") -> None:
        assert self._trace is not None
        self._orders.report_on(
            pb.ProfileReport(
                profile_id=self._trace.order.profile_id,
                begun=True,
                first_step=self._trace.first_step,
                steps_done=self._trace.steps_done,
                ended=ended,
                folder=str(self._trace.folder),
                size_bytes=size_bytes,
                failure=failure,
            )
        )

    async def _on_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


_FAILURE_LENGTH_MAX = 300


def _free_folder(folder: Path, step: int) -> Path:
    """Return a path of a folder that does not exist yet: a resumed learner may repeat a step."""
    name = f"step-{step:06d}"
    number = 1
    while (found := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return found
