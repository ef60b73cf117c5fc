"""What peers do wrong is written down, and cannot fill the ledger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.ledger import event_log
from coordinator.ledger.event_log import EventRows


class Ledger:
    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        self.rows.append((kind, subject, detail, cause))
        return asyncio.get_running_loop().create_future()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_of_what_repeats_a_few_rows_are_written_and_the_rest_is_counted() -> None:
    ledger, clock, kept = Ledger(), Clock(), list[Any]()
    rows = EventRows(ledger, clock, kept.append)  # type: ignore[arg-type]
    for number in range(50):
        rows.write("penalised", "a", f"no rollout {number}", f"upload {number}")
    rows.write("penalised", "b", "no rollout", "upload 50")
    rows.write("quarantined", "a", "sent 3 corrupt chunks", "peer a")
    assert [row[1:3] for row in ledger.rows] == [
        *[("a", f"no rollout {number}") for number in range(event_log.ROWS_EACH)],
        ("b", "no rollout"),
        ("a", "sent 3 corrupt chunks"),
    ]
    rows.write_left_out()
    assert len(ledger.rows) == event_log.ROWS_EACH + 2
    clock.now += event_log.INTERVAL_S
    rows.write_left_out()
    rows.write("penalised", "a", "again", "upload 51")
    assert ledger.rows[-2:] == [
        ("penalised", "a", "45 times more in 60 s", "penalised a"),
        ("penalised", "a", "again", "upload 51"),
    ]
    assert len(kept) == len(ledger.rows)


async def test_notes_of_our_own_are_all_written_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SUBJECTS_KEPT", 2)
    ledger = Ledger()
    rows = EventRows(ledger, Clock(), lambda _: None)  # type: ignore[arg-type]
    for number in range(9):
        rows.write("learner_waited", "step 1", str(number), "step 1")
    assert len(ledger.rows) == 9
    for _ in range(6):
        for subject in ("a", "b"):
            rows.write("penalised", subject, "x", "y")
    rows.write("penalised", "c", "x", "y")
    assert ("penalised", "a", "1 times more in 0 s", "penalised a") in ledger.rows
    assert len(rows._written) == 2
