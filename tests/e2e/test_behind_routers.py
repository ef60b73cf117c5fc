"""Test peers behind real routers: each version arrives unchanged, and each pair finds a link that its routers allow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.systems import rollcast
from bench.systems.base import ROOT, Case
from bench.systems.rollcast_daemons import Daemons
from bench.wan import build
from bench.wan.network import Network, Sockets
from bench.wan.scenarios import Nat, Node
from rollcast.wire.identity.identity import Identity

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())]

SIZE_BYTES = 1_000_000
FALLBACK_S = 1.0 + 3.0 + 2.0 + 4.0  # seconds of a plan, a hole and a circuit, and a margin for a busy machine
PATIENCE_S = 60.0  # enough for a peer to learn its router's kind, get a plan and dial, on a busy machine


def case(folder: Path, routers: tuple[Nat | None, ...], settings: tuple[str, ...] = ()) -> Case:
    homes = (Node(80, 160, 5, router) for router in routers)
    return Case((Node(80, 160, 5), *homes), SIZE_BYTES, Sockets(), folder, 60.0, settle_s=0.1, settings=settings)


def logged(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the log entries of each process so far."""
    paths = (folder / "run" / "logs").glob("*.log")
    return {
        path.stem: [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()] for path in paths
    }


def ways(folder: Path, one: str, other: str) -> set[str]:
    """Return the transports of the links between two processes so far, from both of their logs."""
    entries = logged(folder)
    names = {line["peer_id"]: name for name, log in entries.items() for line in log if line["event"] == "joined"}
    ups = [(name, line) for name, log in entries.items() for line in log if line["event"] == "link up"]
    return {line["transport"] for name, line in ups if {name, names.get(line["peer"])} == {one, other}}


def since(folder: Path, name: str, one: str, other: str) -> float:
    """Return the seconds between the newest entries of two events in a process's log."""
    at = {line["event"]: datetime.fromisoformat(line["timestamp"]) for line in logged(folder)[name]}
    return (at[other] - at[one]).total_seconds()


def until(ready: Callable[[], bool], waiting_for: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end_s, waiting_for
        time.sleep(0.2)


@pytest.mark.slow
def test_a_peer_behind_a_router_relays_over_the_links_that_it_dials(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, (None, "symmetric"))) as publish:
        assert set(publish("publish").seconds) == {1, 2}  # publish() has compared every copy with the published file
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"direct"}, "a link")


@pytest.mark.slow  # test_behind_one_router.py punches one, too
def test_two_peers_behind_routers_punch_a_hole_and_use_it(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, ("port-restricted", "port-restricted"))) as publish:
        until(lambda: "punched" in ways(tmp_path, "peer-1", "peer-2"), "a hole")
        assert set(publish("publish").seconds) == {1, 2}


def test_two_peers_behind_symmetric_routers_get_every_version_through_a_third(tmp_path: Path) -> None:
    pytest.importorskip("libp2p")

    def reserved() -> bool:
        logs = logged(tmp_path)
        found = [line["event"] for name in ("peer-2", "peer-3") for line in logs[name]]
        return found.count("reachable through relays") >= 2

    with rollcast.running(case(tmp_path, (None, "symmetric", "symmetric"), ("peer.link.p2p=true",))) as publish:
        until(reserved, "circuits")
        assert set(publish("publish").seconds) == {1, 2, 3}
        assert ways(tmp_path, "peer-2", "peer-3") <= {"relayed"}, "nothing else gets through"


@pytest.mark.slow
def test_versions_arrive_where_only_the_origin_can_be_dialled(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, ("full-cone", "port-restricted", "symmetric"))) as publish:
        assert set(publish("publish").seconds) == {1, 2, 3}
        until(lambda: "punched" in ways(tmp_path, "peer-1", "peer-2"), "a hole")
        assert set(publish("publish").seconds) == {1, 2, 3}


class ChangingRouter(Daemons):
    """Daemons in which peer 2's router turns symmetric once the coordinator has it as port-restricted.

    Peer 3 starts after that, and has the larger PeerId, so that it asks for the hole."""

    def __init__(self, network: Network, case: Case) -> None:
        super().__init__(network, case)
        self.network, self._folder_of_run = network, case.folder
        keys = [case.folder / f"peer-{number}" / "identity.key" for number in (2, 3)]
        smaller, larger = sorted(keys, key=lambda key: Identity.load_or_create(key).peer_id)
        if smaller != keys[0]:
            smaller.rename(case.folder / "smaller.key")
            larger.rename(keys[1])
            (case.folder / "smaller.key").rename(keys[0])

    def start_peer(self, number: int, *, waits: bool = False) -> None:
        if number == 3:
            told = {"seen from outside", "port for holes", "reachable through relays"}
            until(lambda: told <= self._logged_events("peer-2"), "peer 2 seen")
            self.network.set_nat(2, "symmetric")
        super().start_peer(number, waits=waits)

    def repair(self) -> None:
        """Restart the router as the kind it was, without its flows to the coordinator."""
        self.network.set_nat(2, "port-restricted")
        self.network.forget_flows(2, 0)

    def ends_by_way(self) -> dict[str, int]:
        """Return the number of link ends by transport, as `rollcast broadcast status` shows them."""
        folder = str(self._folder_of_run / "run")
        command = [sys.executable, "-m", "rollcast.cli.main", "broadcast", "status", "--run-folder", folder, "--json"]
        asked = self.network.spawn(0, command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert asked.stdout is not None
        with asked.stdout as stream:
            answer = json.loads(stream.read())
        assert self.network.reap(asked) == 0
        ends: dict[str, int] = answer["reach"]["link_ends"]
        return ends

    def _logged_events(self, name: str) -> set[str]:
        return {line["event"] for line in logged(self._folder_of_run).get(name, [])}


@pytest.mark.slow
def test_a_hole_that_does_not_open_leaves_a_relayed_link_until_it_does(tmp_path: Path) -> None:
    pytest.importorskip("libp2p")
    routers: tuple[Nat | None, ...] = (None, "port-restricted", "port-restricted")
    made: list[ChangingRouter] = []

    def daemons_of(network: Network, case: Case) -> Daemons:
        made.append(ChangingRouter(network, case))
        return made[0]

    def better() -> bool:
        publish("publish")
        upgraded = [line for line in logged(tmp_path)["peer-3"] if line["event"] == "better path"]
        return [(line["before"], line["transport"]) for line in upgraded] == [("relayed", "punched")]

    settings = ("peer.link.p2p=true", "origin.link.relay_for_others=false")
    with rollcast.running(case(tmp_path, routers, settings), daemons_of) as publish:
        until(lambda: ways(tmp_path, "peer-2", "peer-3") == {"relayed"}, "a relayed link")
        assert since(tmp_path, "peer-3", "seen from outside", "link up") < FALLBACK_S
        until(lambda: made[0].ends_by_way()["relayed"] == 2, "a relayed link in the status")
        made[0].repair()
        until(better, "a hole in place of it")
        assert ways(tmp_path, "peer-2", "peer-3") == {"relayed", "punched"}
        until(lambda: made[0].ends_by_way()["hole-punched"] == 2, "a hole in the status")
        assert set(publish("publish").seconds) == {1, 2, 3}
