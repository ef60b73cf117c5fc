"""Test that `bench views` makes every view of a real core."""

from __future__ import annotations

import argparse

from bench.people import views


def test_every_view_is_timed_and_the_longest_is_named() -> None:
    figures = views.run(argparse.Namespace(members=40)).figures
    assert all(figures.values())
    assert figures["turn_ms_max"] == max(value for name, value in figures.items() if not name.startswith("tick"))
    core, _ = views._core(40)
    assert len(core.state.members) == 41
