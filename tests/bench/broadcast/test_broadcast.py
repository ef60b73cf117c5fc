"""Test the broadcast benchmark's figures, rejected runs, and one real broadcast."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from bench.broadcast import broadcast
from bench.systems.base import Broadcast, Case, check_copies, prepare_nodes
from bench.systems.rollcast_daemons import Log, configured
from bench.wan import build
from bench.wan.meter import LATE_MS_MAX, Cost
from bench.wan.network import Sockets
from bench.wan.scenarios import Node, Trouble, fluid_bound
from rollcast.runtime.errors import ConfigError, ProcessFailed

SIZE_BYTES = 1_000_000
SEVERAL_SHARDS_BYTES = 6_000_000  # SHARDCAST does not finish with a single shard


@dataclass
class Canned:
    """A system whose broadcasts are given, not measured."""

    results: list[Broadcast]
    closed: bool = False

    def missing(self) -> str:
        return ""

    def broadcasts(self, case: Case) -> Iterator[Broadcast]:
        try:
            yield from self.results
        finally:
            self.closed = True


def _case(folder: Path, nodes: tuple[Node, ...] = (Node(8, 8, 1),) * 3, size_bytes: int = SIZE_BYTES) -> Case:
    return Case(nodes, size_bytes, Sockets(), folder, 60.0, settle_s=0.1)


def _took(last_s: float, *, late_ms: float = 1.0, troubled: bool = False) -> Broadcast:
    cost = Cost(
        source_bytes=1_050_000,
        all_bytes=2_100_000,
        drops=0,
        cpu_s=0.02,
        emulator_cpu_s=0.01,
        core_s=2.0,
        cpu_share=0.5,
        late_max_ms=late_ms,
    )
    return Broadcast({1: last_s / 2, 2: last_s}, cost, reported_s=last_s + 0.1, troubled=troubled)


def test_late_runs_are_counted_and_do_not_count(tmp_path: Path) -> None:
    case = _case(tmp_path)
    bound = fluid_bound(SIZE_BYTES, case.nodes)
    system = Canned([_took(2.0), _took(9.0, late_ms=LATE_MS_MAX + 1), _took(3.0), _took(4.0), _took(99.0)])
    figures = broadcast.figures(broadcast.measure(system, case, bound, runs=3), bound)
    assert bound.seconds == pytest.approx(1.0)
    assert (figures["runs"], figures["runs_rejected"]) == (3, 1)
    assert figures["ratio_median"] == pytest.approx(3.0)
    assert figures["ratio_max"] == pytest.approx(4.0)
    assert figures["t_bcast_reported_s"] == pytest.approx(3.1)
    assert figures["slowest_downlink_ratio"] == pytest.approx(3.0)
    assert (figures["worst_own_ratio"], figures["median_own_ratio"]) == (pytest.approx(3.0), pytest.approx(2.25))
    assert figures["source_bytes_ratio"] == pytest.approx(1.05)
    assert figures["cpu_s_per_gb"] == pytest.approx(10.0)  # 0.02 s for two copies of a megabyte
    assert system.closed


def test_an_emulator_that_never_keeps_up_is_an_error(tmp_path: Path) -> None:
    case = _case(tmp_path)
    system = Canned([_took(2.0, late_ms=1000.0)] * 9)
    with pytest.raises(ProcessFailed, match="none of the 4 runs counts"):
        broadcast.measure(system, case, fluid_bound(SIZE_BYTES, case.nodes), runs=2)
    assert system.closed


def test_troubled_broadcasts_count_and_clean_ones_are_compared(tmp_path: Path) -> None:
    case = replace(_case(tmp_path), trouble=Trouble("joins", 1))
    bound = fluid_bound(SIZE_BYTES, case.nodes)
    system = Canned([_took(2.0), _took(3.0, troubled=True), _took(1.6), _took(2.4, troubled=True), _took(9.0)])
    figures = broadcast.figures(broadcast.measure(system, case, bound, runs=2), bound)
    assert (figures["runs"], figures["clean_runs"]) == (2, 2)
    assert figures["clean_ratio_median"] == pytest.approx(1.8)
    assert figures["vs_clean"] == pytest.approx(1.5)
    assert figures["joiner_median_s"] == pytest.approx(1.35)


def _arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    broadcast.add_arguments(parser)
    return parser.parse_args(given)


def test_several_systems_have_keys_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "require", lambda: None)
    monkeypatch.setattr(broadcast, "alone", nullcontext)  # nothing is measured, so no lock is needed
    monkeypatch.setattr(broadcast, "system_of", lambda _name: Canned([_took(6.0), _took(6.0)]))
    one = broadcast.run(_arguments("--runs", "1"))
    both = broadcast.run(_arguments("--runs", "1", "--system", "rollcast,http-star"))
    assert one.settings["system"] == "rollcast"
    assert one.figures["t_bcast_median_s"] == both.figures["http-star.t_bcast_median_s"] == pytest.approx(6.0)


def test_broadcasts_with_routers_count_and_the_open_network_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[Node, ...]] = []

    class Recording(Canned):
        def broadcasts(self, case: Case) -> Iterator[Broadcast]:
            measured.append(case.nodes)
            took_s = 3.0 if any(node.nat for node in case.nodes) else 2.0
            yield replace(_took(took_s), seconds=dict.fromkeys(case.receivers, took_s))

    monkeypatch.setattr(build, "require", lambda: None)
    monkeypatch.setattr(broadcast, "alone", nullcontext)
    monkeypatch.setattr(broadcast, "system_of", lambda _name: Recording([]))
    figures = broadcast.run(_arguments("--runs", "1", "--scenario", "nat50")).figures
    assert figures["vs_clean"] == pytest.approx(1.5)
    behind, without = measured
    assert sum(node.nat is not None for node in behind) == 8
    assert without == tuple(node.open() for node in behind)


def test_without_an_emulator_no_bytes_of_nodes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "require", lambda: pytest.fail("nothing is emulated"))
    monkeypatch.setattr(broadcast, "alone", nullcontext)
    monkeypatch.setattr(broadcast, "system_of", lambda _name: Canned([_took(2.0)]))
    found = broadcast.run(_arguments("--runs", "1", "--scenario", "gigabit", "--mib", "250")).figures
    assert found["bound_s"] == pytest.approx(2.097, abs=0.001)
    assert found["delivered_mb_s"] == pytest.approx(4 * 250 * 1.048576 / 2.0)
    assert not {"source_bytes_ratio", "cpu_share_emulator"} & found.keys()


@pytest.mark.parametrize(
    "given",
    [
        ("--system", "aria2", "--scenario", "nat50"),
        ("--system", "aria2", "--scenario", "gigabit"),
        ("--system", "ftp"),
        ("--system", "rollcast", "--system", "aria2", "--scenario", "die50"),
    ],
)
def test_unmeasurable_systems_are_an_error_before_anything_starts(given: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        broadcast.run(_arguments(*given))


def test_settings_reach_the_daemons_that_they_are_for() -> None:
    given = ("peer.link.congestion=reno", "origin.link.congestion=bbr", "learner.publish.keep_versions=5")
    values = {"link": {"host": "10.0.0.1", "congestion": "cubic"}}
    assert configured("peer", values, given)["link"] == {"host": "10.0.0.1", "congestion": "reno"}
    assert configured("origin", values, given)["link"]["congestion"] == "bbr"
    assert values["link"]["congestion"] == "cubic"
    with pytest.raises(ConfigError, match="unknown key"):
        configured("peer", values, ("peer.link.colour=red",))


def test_every_node_begins_with_an_empty_folder(tmp_path: Path) -> None:
    case = _case(tmp_path, (Node(80, 160, 5),) * 3, 1000)
    for _ in range(2):
        folders, payload, digest = prepare_nodes(case)
        check_copies({0: payload}, digest)
        assert [list(folder.iterdir()) for folder in folders] == [[payload], [], []]
        (folders[1] / "copy").write_bytes(b"of the broadcast before")


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "peer.log"
    log = Log(path)
    assert log.last("version held", 1) is None
    with path.open("a", buffering=1) as stream:
        stream.write(
            '{"event": "version held", "version": 1, "timestamp": "2026-01-01T00:00:01+00:00"}\n{"event": "ver'
        )
        first = log.last("version held", 1)
        stream.write('\n{"event": "version held", "version": 2, "timestamp": "2026-01-01T00:00:03.5+00:00"}\n')
    second = log.last("version held", 2)
    assert first is not None
    assert second == first + 2.5


@pytest.mark.e2e
@pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
@pytest.mark.parametrize(
    "name",
    # tests/e2e/test_behind_one_router.py has our own system deliver, to homes
    [pytest.param(name, marks=pytest.mark.slow if name == "rollcast" else ()) for name in broadcast.SYSTEMS],
)
def test_every_system_that_is_installed_delivers(name: str, tmp_path: Path) -> None:
    system = broadcast.system_of(name)
    if lacking := system.missing():
        pytest.skip(lacking)
    case = _case(tmp_path, (Node(80, 160, 5),) * 3, SEVERAL_SHARDS_BYTES)
    broadcasts = cast(Generator[Broadcast, None, None], system.broadcasts(case))
    with closing(broadcasts):
        one = next(broadcasts)
    assert set(one.seconds) == {1, 2}
    assert one.last_s == pytest.approx(max(one.seconds.values()), abs=0.3)
    assert case.size_bytes < one.cost.source_bytes < 3 * case.size_bytes
