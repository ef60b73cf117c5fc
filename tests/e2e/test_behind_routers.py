"""Peers behind real routers: each version arrives as it was published, and pairs find what their routers allow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.systems import rollcast
from bench.systems.base import Case
from bench.wan import build
from bench.wan.network import Sockets
from bench.wan.scenarios import Nat, Node

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())]

SIZE_BYTES = 1_000_000
PATIENCE_S = 60.0  # a peer learns its router's kind, is planned with, and dials; on a busy machine


def case(folder: Path, routers: tuple[Nat | None, ...], settings: tuple[str, ...] = ()) -> Case:
    homes = (Node(80, 160, 5, router) for router in routers)
    return Case((Node(80, 160, 5), *homes), SIZE_BYTES, Sockets(), folder, 60.0, settle_s=0.1, settings=settings)


def logged(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each process has logged so far."""
    paths = (folder / "run" / "logs").glob("*.log")
    return {
        path.stem: [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()] for path in paths
    }


def ways(folder: Path, one: str, other: str) -> set[str]:
    """What carried the links between two processes so far, by what both of them say."""
    entries = logged(folder)
    names = {line["peer_id"]: name for name, log in entries.items() for line in log if line["event"] == "joined"}
    ups = [(name, line) for name, log in entries.items() for line in log if line["event"] == "link up"]
    return {line["transport"] for name, line in ups if {name, names.get(line["peer"])} == {one, other}}


def until(ready: Callable[[], bool], waiting_for: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end_s, waiting_for
        time.sleep(0.2)


def test_a_peer_behind_a_router_relays_over_the_links_that_it_dials(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, (None, "symmetric"))) as publish:
        assert set(publish("publish").seconds) == {1, 2}  # every copy has been compared with what was published
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"direct"}, "a link")


def test_two_peers_behind_routers_punch_a_hole_and_use_it(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, ("port-restricted", "port-restricted"))) as publish:
        until(lambda: "punched" in ways(tmp_path, "peer-1", "peer-2"), "a hole")
        assert set(publish("publish").seconds) == {1, 2}


def test_two_peers_behind_symmetric_routers_can_be_reached_through_a_third_and_get_everything(tmp_path: Path) -> None:
    pytest.importorskip("libp2p")

    def reserved() -> bool:
        logs = logged(tmp_path)
        found = [line["event"] for name in ("peer-2", "peer-3") for line in logs[name]]
        return found.count("reachable through relays") >= 2

    with rollcast.running(case(tmp_path, (None, "symmetric", "symmetric"), ("peer.link.p2p=true",))) as publish:
        until(reserved, "circuits")
        assert set(publish("publish").seconds) == {1, 2, 3}
        assert ways(tmp_path, "peer-2", "peer-3") <= {"relayed"}, "nothing else gets through"


def test_versions_arrive_where_only_the_origin_can_be_dialled(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, ("full-cone", "port-restricted", "symmetric"))) as publish:
        assert set(publish("publish").seconds) == {1, 2, 3}
        until(lambda: "punched" in ways(tmp_path, "peer-1", "peer-2"), "a hole")
        assert set(publish("publish").seconds) == {1, 2, 3}
