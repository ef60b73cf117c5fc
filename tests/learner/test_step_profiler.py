"""Test how a trace begins and ends between steps, with a profiler that is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from learner import step_profiler
from learner.coordinator.profile_orders import ProfileOrders
from learner.step_profiler import StepProfiler
from learner.training.trainer import Trainer
from rollcast.wire.proto import rollcast_pb2 as pb


class Tracer:
    """Stand in for a trainer: a trace is one file, and each operation can fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.folder = Path("no trace yet")

    def begin_trace(self, folder: Path, *, python_tracer: bool) -> None:
        self.folder = folder
        self._call("begin")
        folder.mkdir(parents=True)

    def end_trace(self) -> None:
        self._call("end")
        if self.folder.is_dir():  # no trace has begun where `begin` failed
            (self.folder / "trace").write_bytes(b"x" * 10)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]


class Profiled:
    """A profiler with one order for two steps, which the coordinator waits for."""

    def __init__(self, folder: Path, worker: ThreadPoolExecutor) -> None:
        self.tracer, self.orders, self.order = Tracer(), ProfileOrders(), pb.ProfileOrder(profile_id="a", steps=2)
        self.orders.answered(self.order, sent=None)
        self.orders.answered(self.order, sent=self.orders.report)
        self.profiler = StepProfiler(cast(Trainer, self.tracer), worker, folder, self.orders)

    @property
    def report(self) -> dict[str, Any]:
        assert self.orders.report is not None
        return {field.name: value for field, value in self.orders.report.ListFields()}

    @asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        await self.profiler.step_begins(number)
        yield
        await self.profiler.step_ended()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Profiled]:
    with ThreadPoolExecutor(max_workers=1) as worker:
        yield Profiled(tmp_path, worker)


async def test_a_trace_has_the_ordered_steps_and_a_folder_of_its_own(one: Profiled, tmp_path: Path) -> None:
    (tmp_path / "step-000007").mkdir()
    folder = str(tmp_path / "step-000007-2")
    async with one.profiler:
        async with one.step(7):
            assert one.report == {"profile_id": "a", "begun": True, "first_step": 7, "folder": folder}
        assert one.report["steps_done"] == 1
        async with one.step(8):
            assert one.tracer.calls == ["begin"]
        whole = {"profile_id": "a", "begun": True, "first_step": 7, "steps_done": 2, "ended": True}
        assert one.report == whole | {"folder": folder, "size_bytes": 10}
        async with one.step(9):
            pass
    assert one.tracer.calls == ["begin", "end"]


async def test_a_trace_ends_early_with_the_run_or_with_what_it_is_for(one: Profiled) -> None:
    async with one.profiler, one.step(7):
        pass
    assert (one.report["failure"], one.report["steps_done"]) == ("the learner stopped training", 1)
    assert one.tracer.calls == ["begin", "end"]


async def test_a_trace_that_the_coordinator_gave_up_ends_with_the_step(one: Profiled) -> None:
    async with one.profiler:
        async with one.step(7):
            one.orders.answered(None, sent=one.orders.report)
        assert one.report["failure"] == "the coordinator gave the profile up"
        assert one.tracer.calls == ["begin", "end"]


async def test_when_training_fails_only_this_processs_trace_is_ended(
    one: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_profiler, "end_trace", lambda: one.tracer.calls.append("end here"))
    with pytest.raises(KeyError):
        async with one.profiler, one.step(7):
            raise KeyError
    assert one.report["failure"] == "training failed"
    assert one.tracer.calls == ["begin", "end here"]


@pytest.mark.parametrize(
    ("call", "calls", "why"),
    [
        ("begin", ["begin", "end"], "the profiler did not start: no space"),
        ("end", ["begin", "end"], "the trace cannot be written: no space"),
    ],
)
async def test_errors_of_the_profiler_do_not_stop_training(
    one: Profiled, call: str, calls: list[str], why: str
) -> None:
    one.tracer.fails = {call: OSError("no space")}
    async with one.profiler:
        for number in (7, 8, 9):
            async with one.step(number):
                pass
    assert one.tracer.calls == calls
    assert (one.report["ended"], one.report["failure"]) == (True, why)
