"""Test the structure's figures, the graph of imports, and each rule of the source tree with a planted breach."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.structure import house, import_graph, rules
from bench.structure.house import Way
from bench.structure.import_graph import FloorGraph
from bench.structure.rules import RULES, Rule


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def graph_of(root: Path) -> FloorGraph:
    modules = import_graph.find_modules(root)
    return import_graph.build_floor_graph(modules, import_graph.find_imports(root, modules))


def test_modules_are_counted_by_folder(tmp_path: Path) -> None:
    names = ("peer/__init__.py", "peer/service.py", "peer/relay/__init__.py", "peer/relay/a.py", "peer/relay/b.py")
    write(tmp_path, dict.fromkeys((*names, "rollcast/wire/proto/x_pb2.py", "other/c.py"), ""))
    modules = import_graph.find_modules(tmp_path)
    assert set(modules) == {"peer", "peer.service", "peer.relay", "peer.relay.a", "peer.relay.b"}
    assert import_graph.count_by_folder(modules) == {"peer": 1, "peer/relay": 2}


def test_every_form_of_import_counts(tmp_path: Path) -> None:
    text = """
import typing
import peer.links.one
from peer.links import two, NAME
if typing.TYPE_CHECKING:
    from peer.links.three import Three
def late():
    from peer.links import four as other
"""
    write(tmp_path, {"peer/links/__init__.py": "", "peer/relay/a.py": text})
    write(tmp_path, {f"peer/links/{name}.py": "" for name in ("one", "two", "three", "four", "five")})
    pairs = import_graph.find_imports(tmp_path, import_graph.find_modules(tmp_path))
    assert {importing for importing, _ in pairs} == {"peer.relay.a"}
    assert {imported for _, imported in pairs} == {
        *("peer.links", "peer.links.one", "peer.links.two", "peer.links.three", "peer.links.four")
    }


def test_a_relative_import_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"peer/a.py": "from . import b", "peer/b.py": ""})
    with pytest.raises(ValueError, match=r"peer/a.py, line 1: relative import"):
        import_graph.find_imports(tmp_path, import_graph.find_modules(tmp_path))


def test_folders_that_import_each_other_are_a_circle(tmp_path: Path) -> None:
    files = {"peer/a/one.py": "import peer.b.two", "peer/b/two.py": "", "peer/b/three.py": "import peer.a.four"}
    write(tmp_path, files | {"peer/a/four.py": "", "peer/c/five.py": "import peer.a.one"})
    assert import_graph.find_circles(graph_of(tmp_path)) == [frozenset({"peer/a", "peer/b"})]


def test_doors_are_floors_of_their_own(tmp_path: Path) -> None:
    below = {"peer/a/one.py": "from peer.config import C", "peer/config.py": ""}
    write(tmp_path, below | {"peer/service.py": "import peer.a.one", "rollcast/sim/world.py": "import peer.service"})
    assert import_graph.find_circles(graph_of(tmp_path)) == []
    write(tmp_path, {"peer/config.py": "import peer.service"})
    assert import_graph.find_circles(graph_of(tmp_path)) == [frozenset({"peer/a", "peer/config.py", "peer/service.py"})]


def test_the_fewest_imports_are_cut() -> None:
    graph: FloorGraph = {
        ("a", "b"): {("a.1", "b.1"), ("a.2", "b.1")},
        ("b", "c"): {("b.1", "c.1"), ("b.2", "c.1")},
        ("c", "a"): {("c.1", "a.1")},
        ("c", "b"): {("c.1", "b.1")},
        ("d", "a"): {("d.1", "a.1")},
    }
    (circle,) = import_graph.find_circles(graph)
    assert circle == {"a", "b", "c"}
    assert import_graph.imports_to_cut(circle, graph) == {("c.1", "a.1"), ("c.1", "b.1")}
    left = {edge: pairs for edge, pairs in graph.items() if edge not in {("c", "a"), ("c", "b")}}
    assert import_graph.find_circles(left) == []


def test_imports_against_the_package_rules_are_found() -> None:
    rules: dict[str, set[str]] = {"rollcast.wire": {"rollcast.runtime"}, "peer": {"rollcast.wire"}}
    allowed = {("peer.a", "rollcast.wire.ids"), ("peer.a", "peer.b"), ("peer.a", "rollcast"), ("bench.a", "peer.a")}
    forbidden = {("peer.a", "rollcast.runtime.errors"), ("rollcast.wire.ids", "peer.a"), ("peer.a", "bench.a")}
    assert import_graph.break_rules(allowed | forbidden, rules) == forbidden


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a small tree in which every folder's ``__init__`` has a sentence on what belongs there."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(root).parents:
            init = root / folder / "__init__.py"
            if str(folder) != "." and not init.exists():
                init.write_text('"""Hold something."""\n')
    return root


@pytest.mark.parametrize(
    ("rule", "files", "seen"),
    [
        (
            rules.relative_imports,
            {"peer/a.py": "from . import b", "peer/b.py": ""},
            "peer/a.py, line 1: relative import",
        ),
        (
            rules.forbidden_imports,
            {"rollcast/wire/a.py": "from peer.b import C", "peer/b.py": ""},
            "rollcast.wire.a must not import peer.b",
        ),
        (
            rules.forbidden_imports,
            {"learner/a.py": "import peer.b", "peer/b.py": ""},
            "learner.a must not import peer.b",
        ),
        (
            rules.forbidden_imports,
            {"coordinator/a.py": "def late():\n    import jax.numpy"},
            "coordinator/a.py must not import jax",
        ),
        (
            rules.circles,
            {"peer/links/a.py": "import peer.relay.b", "peer/relay/b.py": "import peer.links.a"},
            "these folders import each other: peer/links, peer/relay",
        ),
        (rules.impurities, {"peer/relay/core/a.py": "import time"}, "peer/relay/core/a.py must not import time"),
        (
            rules.impurities,
            {"peer/worker/core/core.py": "import asyncio"},
            "peer/worker/core/core.py must not import asyncio",
        ),
        (
            rules.impurities,
            {"peer/worker/core/pacing.py": '"""Decide when to wait. Pure."""\nfrom random import random'},
            "peer/worker/core/pacing.py must not import random",
        ),
        (
            rules.full_folders,
            {f"peer/links/m{number}.py": "" for number in range(16)},
            "peer/links holds 16 modules",
        ),
        (
            rules.folders_without_a_sentence,
            {"peer/links/a.py": "", "peer/links/__init__.py": ""},
            "peer/links/__init__.py does not say what belongs there",
        ),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, rule: Rule, files: dict[str, str], seen: str) -> None:
    assert list(rule(plant(tmp_path, files))) == [seen]


def test_a_correct_tree_has_no_breaches(tmp_path: Path) -> None:
    files = {
        "rollcast/wire/ids.py": "",
        "peer/relay/core/core.py": "from rollcast.wire.ids import PeerId",
        "peer/relay/relay.py": "import asyncio\nfrom peer.relay.core.core import RelayCore",
        "peer/service.py": "from peer.relay.relay import Relay",
        "capacity/planner/planner.py": "import time",
    }
    root = plant(tmp_path, files)
    assert [line for rule in RULES for line in rule(root)] == []


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
    # The generator is called once and resumed twice; code outside our packages counts as no border.
    assert way == Way({"peer/a.py", "peer/b.py"}, Counter({("peer/a.py", "peer/b.py"): 3}))
