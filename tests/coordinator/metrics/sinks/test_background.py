"""Sinks that are slow, or fail, behind the one that never makes the run wait."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from coordinator.metrics.sinks import background
from coordinator.metrics.sinks.background import FAILURES_MAX, STEPS_QUEUED_MAX, BackgroundSink
from coordinator.metrics.sinks.sink import Sink


class Kept:
    """Keeps steps; waits, or fails, where it is told to."""

    name = "kept"

    def __init__(self, *, fails: bool = False) -> None:
        self.steps: list[int] = []
        self.tried = 0
        self.closed = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._fails = fails

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.may_go_on.wait(30.0)
        self.tried += 1
        if self._fails:
            raise OSError("no room")
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_all_steps_arrive_in_order_before_it_is_closed() -> None:
    kept = Kept()
    sink = BackgroundSink("kept", lambda: kept)
    for step in range(100):
        sink.write(step, {"loss": 1.0})
    sink.close()
    assert kept.steps == list(range(100))
    assert kept.closed


def test_a_slow_sink_makes_nobody_wait_and_what_is_left_out_is_said() -> None:
    kept = Kept()
    kept.may_go_on.clear()
    sink = BackgroundSink("kept", lambda: kept)
    with capture_logs() as logs:
        for step in range(STEPS_QUEUED_MAX + 10):
            sink.write(step, {})
    assert logs[0]["event"] == "a metrics sink is too slow: steps are left out"
    kept.may_go_on.set()
    sink.close()
    assert STEPS_QUEUED_MAX <= len(kept.steps) <= STEPS_QUEUED_MAX + 1  # one may have been taken out of the queue


def test_a_sink_that_always_fails_is_given_up() -> None:
    kept = Kept(fails=True)
    with capture_logs() as logs:
        sink = BackgroundSink("kept", lambda: kept)
        for step in range(FAILURES_MAX + 50):
            sink.write(step, {})
        sink.close()
    assert kept.tried == FAILURES_MAX
    assert logs[-1]["event"] == "a metrics sink fails repeatedly: the run goes on without it"


def test_a_sink_that_cannot_be_opened_costs_a_line_in_the_log() -> None:
    def make() -> Sink:
        raise OSError("no such account")

    with capture_logs() as logs:
        sink = BackgroundSink("kept", make)
        sink.write(1, {})
        sink.close()
    assert logs[0]["cause"] == "no such account"


def test_closing_has_a_deadline(monkeypatch: Any) -> None:
    monkeypatch.setattr(background, "CLOSE_DEADLINE_S", 0.05)
    kept = Kept()
    kept.may_go_on.clear()
    sink = BackgroundSink("kept", lambda: kept)
    sink.write(1, {})
    with capture_logs() as logs:
        sink.close()
    assert logs[0]["event"].startswith("a metrics sink did not end in time")
    kept.may_go_on.set()
