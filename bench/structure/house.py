"""Measure how easily code is found: modules per folder, circles of folders, file borders on the way of an event.

The folder graph and its terms are those of ``bench.structure.import_graph``. ``upward_imports`` counts the imports that
must be removed before folders import downwards only, plus those that the package rules of the architecture test forbid.

A *crossing* is a call whose caller and callee are in different files of the product packages, counted from a core's
``handle(event, now)`` to its return. Only calls of Python functions count, each time they happen: a property, a resumed
generator and each turn of a loop too. Returns do not count, nor does code that dataclasses generate. Events come from a
simulated fleet without faults that passes versions on chunk by chunk; a figure is the median over all events of a kind,
``_max`` the largest one. ``files`` is the median number of files in which a function ran.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any
from unittest import mock

import rollcast
from bench.machine import Outcome
from bench.structure import import_graph
from bench.structure.rules import MAY_IMPORT
from coordinator.core.core import CoordinatorCore
from peer.relay.core.core import RelayCore
from rollcast.sim.scenario import realistic
from rollcast.sim.simulation import simulate

ROOT = Path(rollcast.__file__).resolve().parents[1]

#: Class of the event -> what its figures are called.
EVENTS = {
    "RolloutReceived": "rollout_received",
    "ChunkVerified": "chunk_verified",
    "PeerJoined": "peer_joined",
    "BatchRequested": "batch_requested",
}


@dataclass(slots=True)
class Way:
    """The way of one event through the files; paths are relative to the root."""

    files: set[str] = field(default_factory=set)
    borders: Counter[tuple[str, str]] = field(default_factory=Counter)  # caller's and callee's file -> calls


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=900.0, help="virtual seconds to simulate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--borders", type=int, default=0, help="number of most crossed borders shown per event")


def run(arguments: argparse.Namespace) -> Outcome:
    ways = follow_events(arguments.peers, arguments.seconds, arguments.seed)
    for event, found in ways.items():
        _show_borders(event, found, arguments.borders)
    figures = measure_tree(ROOT) | measure_ways(ways)
    settings = {"peers": arguments.peers, "seconds": arguments.seconds, "seed": arguments.seed}
    return Outcome(settings, figures, missing=missing_keys(ways))


def measure_tree(root: Path) -> dict[str, float]:
    """Return the figures that need no simulation."""
    modules = import_graph.find_modules(root)
    by_folder = import_graph.count_by_folder(modules)
    pairs = import_graph.find_imports(root, modules)
    graph = import_graph.build_floor_graph(modules, pairs)
    circles = import_graph.find_circles(graph)
    upward = import_graph.break_rules(pairs, MAY_IMPORT)
    for circle in circles:
        upward |= import_graph.imports_to_cut(circle, graph)
    lines = count_lines(root, modules)
    return {
        "modules_most": max(by_folder.values()),
        "modules_mean": sum(by_folder.values()) / len(by_folder),
        "folder_circles": len(circles),
        "upward_imports": len(upward),
        "python_lines": sum(lines.values()),
        "python_lines_without_bench": sum(lines.values()) - lines["bench"],
        "test_modules": sum(1 for _ in (root / "tests").rglob("test_*.py")),
    }


def count_lines(root: Path, modules: Mapping[str, PurePosixPath]) -> Counter[str]:
    """Return the lines of the modules of each package; blank lines and comments count."""
    lines: Counter[str] = Counter()
    for path in modules.values():
        lines[path.parts[0]] += (root / path).read_bytes().count(b"\n")
    return lines


def follow_events(peers: int, seconds: float, seed: int) -> dict[str, list[Way]]:
    """Run a simulated fleet for so many virtual seconds and return the ways of all events of each kind."""
    ways: dict[str, list[Way]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        for core in (CoordinatorCore, RelayCore):
            stack.enter_context(mock.patch.object(core, "handle", _followed(core.handle, ways)))
        simulate(replace(realistic(peers), receiving="chunks"), seed, seconds=seconds)
    return ways


def measure_ways(ways: Mapping[str, Sequence[Way]]) -> dict[str, float]:
    """Return the figures of every kind of event that happened."""
    figures: dict[str, float] = {}
    for event, name in EVENTS.items():
        if found := ways.get(event):
            crossings = [way.borders.total() for way in found]
            values = (statistics.median(crossings), max(crossings), statistics.median(len(way.files) for way in found))
            figures |= zip(_keys(name), values, strict=True)
    return figures


def missing_keys(ways: Mapping[str, Sequence[Way]]) -> tuple[str, ...]:
    """Return the keys of the events that did not happen."""
    return tuple(key for event, name in EVENTS.items() if not ways.get(event) for key in _keys(name))


@contextlib.contextmanager
def counted(way: Way, root: Path = ROOT) -> Iterator[None]:
    """Add the calls made in this context to the way. A profiler that is already active pauses meanwhile."""
    prefix = f"{root}/"
    ours = tuple(f"{prefix}{package}/" for package in import_graph.PACKAGES if package != "bench")

    def observe(frame: FrameType, what: str, _argument: Any) -> None:
        callee = frame.f_code.co_filename
        if what != "call" or not callee.startswith(ours):
            return
        callee = callee.removeprefix(prefix)
        way.files.add(callee)
        caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
        if caller.startswith(ours) and caller.removeprefix(prefix) != callee:
            way.borders[caller.removeprefix(prefix), callee] += 1

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        yield
    finally:
        sys.setprofile(before)


def _followed(handle: Callable[[Any, Any, float], Any], ways: dict[str, list[Way]]) -> Callable[[Any, Any, float], Any]:
    """Return the same method of a core, which also follows the events that are measured."""

    def follow(core: Any, event: Any, now: float) -> Any:
        name = type(event).__name__
        if name not in EVENTS:
            return handle(core, event, now)
        way = Way()
        ways[name].append(way)
        with counted(way):
            return handle(core, event, now)

    return follow


def _keys(name: str) -> tuple[str, str, str]:
    return f"crossings_{name}", f"crossings_{name}_max", f"files_{name}"


def _show_borders(event: str, ways: Sequence[Way], most: int) -> None:
    total: Counter[tuple[str, str]] = Counter()
    for way in ways:
        total += way.borders
    for (caller, callee), count in total.most_common(most):
        print(f"{event}: {count / len(ways):6.2f}  {caller} -> {callee}", file=sys.stderr)
