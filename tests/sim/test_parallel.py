"""Test simulations in processes of their own: order, bound, and a process that fails."""

from __future__ import annotations

import time

import pytest

from rollcast.runtime.errors import ProcessFailed
from rollcast.sim.parallel import cores, documents


def printing(text: str, after_s: float = 0.0) -> list[str]:
    return ["-c", f"import time; time.sleep({after_s}); print({text!r})"]


def test_documents_come_in_the_order_of_the_commands() -> None:
    commands = [printing('{"one": 1}', 0.3), printing('{"one": 2}')]
    assert [found["one"] for found in documents(commands, 2)] == [1, 2]
    assert cores() >= 1


def test_progress_is_reported_and_is_none_of_the_last_words() -> None:
    told: list[tuple[int, float]] = []
    told_by = ["-c", "from rollcast.sim.parallel import report_progress as t; t(0.25); t(1.0); print('{}')"]
    assert list(documents([printing("{}"), told_by], 2, lambda place, share: told.append((place, share)))) == [{}, {}]
    assert told == [(1, 0.25), (1, 1.0)]
    fails = ["-c", "from rollcast.sim.parallel import report_progress as t; t(0.5); raise SystemExit('out of memory')"]
    with pytest.raises(ProcessFailed) as found:
        list(documents([fails], 1))
    assert found.value.cause == "out of memory"


def test_a_process_that_fails_ends_the_others_and_is_quoted() -> None:
    began_s = time.monotonic()
    with pytest.raises(ProcessFailed) as found:
        list(documents([["-c", "raise SystemExit('out of memory')"], printing("{}", 60.0), printing("{}", 60.0)], 2))
    assert "out of memory" in found.value.cause
    assert time.monotonic() - began_s < 30.0
