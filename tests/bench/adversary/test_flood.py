"""Test the parts of the flood that need no coordinator."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import __main__ as main
from bench.adversary import flood
from bench.adversary.flood import Window, _timed
from bench.adversary.hostile_sockets import CONNECTIONS
from bench.machine import Outcome


def test_the_command_floods_with_as_many_connections_as_it_says() -> None:
    assert f"{CONNECTIONS} hostile connections" in main.BENCHES["adversary"]["flood"]


@pytest.mark.parametrize(("error", "counts"), [(None, (1, 0)), (OSError(), (0, 1))])
async def test_requests_without_an_answer_are_counted(error: Exception | None, counts: tuple[int, int]) -> None:
    window = Window()
    async with _timed(window):
        if error is not None:
            raise error
    assert (len(window.answered_s), window.failed) == counts


@pytest.mark.parametrize(("sessions", "expected"), [(0, {}), (200, {"sessions_rss_growth_mib": 3.0})])
def test_honest_sessions_are_measured_with_a_coordinator_of_their_own(
    sessions: int, expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    @contextlib.contextmanager
    def coordinator() -> Iterator[tuple[object, Path]]:
        started.append(object())
        yield started[-1], Path()

    async def flooded(*_arguments: object) -> Outcome:
        return Outcome({}, {"rss_growth_mib": 5.0})

    async def welcomed(*_arguments: object) -> float:
        return Window(rss_bytes=[2 << 20, 5 << 20]).growth_mib(Window(rss_bytes=[1 << 20, 2 << 20]))

    for name, stand_in in (("_coordinator", coordinator), ("_flood", flooded), ("_welcome", welcomed)):
        monkeypatch.setattr(flood, name, stand_in)
    outcome = flood.run(argparse.Namespace(honest_sessions=sessions))
    assert outcome.figures == {"rss_growth_mib": 5.0} | expected
    assert len(started) == 1 + len(expected)
