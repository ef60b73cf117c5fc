from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.structure import house
from bench.structure.house import Way


def test_it_measures_this_tree_and_a_small_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    house.add_arguments(parser)
    outcome = house.run(parser.parse_args(["--peers", "3", "--seconds", "200", "--borders", "1"]))
    figures = outcome.figures
    assert outcome.missing == ()
    assert figures["modules_most"] > figures["modules_mean"] > 1
    assert figures["python_lines"] > figures["python_lines_without_bench"] > 50_000
    assert figures["test_modules"] > 100
    for name in house.EVENTS.values():
        assert figures[f"crossings_{name}_max"] >= figures[f"crossings_{name}"] > figures[f"files_{name}"] - 1 > 0
    assert "RolloutReceived: " in capsys.readouterr().err
    assert sys.getprofile() is None


def test_the_same_fleet_gives_the_same_figures() -> None:
    first, second = (house.measure_ways(house.follow_events(3, 100.0, 1)) for _ in range(2))
    assert first == second


def test_events_that_did_not_happen_have_no_figures() -> None:
    ways = {event: [Way()] for event in house.EVENTS if event != "PeerJoined"}
    absent = ("crossings_peer_joined", "crossings_peer_joined_max", "files_peer_joined")
    assert house.missing_keys(ways) == absent
    assert not set(absent) & set(house.measure_ways(ways))


def test_calls_from_file_to_file_are_counted(tmp_path: Path) -> None:
    def function(name: str, text: str, **known: object) -> object:
        path = str(tmp_path / name)
        defined: dict[str, object] = dict(known)
        exec(compile(text, path, "exec"), defined)
        return defined["f"]

    outside = function("elsewhere/c.py", "def f(call): return call()")
    inner = function("peer/b.py", "def f():\n    helper()\n    yield 1\n    yield 2\ndef helper(): pass")
    text = "def f():\n    for one in inner(): one\n    outside(lambda: None)"
    outer = function("peer/a.py", text, inner=inner, outside=outside)
    assert callable(outer)
    way = Way()
    with house.counted(way, tmp_path):
        outer()
    # The generator is called once and resumed twice; code outside of our packages is no border.
    assert way == Way({"peer/a.py", "peer/b.py"}, Counter({("peer/a.py", "peer/b.py"): 3}))
