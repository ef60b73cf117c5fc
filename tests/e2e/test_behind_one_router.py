"""Test peers behind one router (a lab or a home) that drops what they send to its own address, and one elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.systems import rollcast
from bench.systems.base import Case
from bench.wan import build
from bench.wan.network import Sockets
from bench.wan.scenarios import Nat, Node
from tests.e2e.test_behind_routers import SIZE_BYTES, logged, until, ways

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())]


def case(folder: Path, nat: Nat, *homes: int | None) -> Case:
    """Return a case with two or more peers, declared as one site: each behind its own router, or that of another."""
    home = Node(80, 160, 5, nat)
    nodes = (Node(80, 160, 5), *(replace(home, beside=beside) for beside in homes))
    settings = ("coordinator.relay.lan_preferred=true",)
    return Case(nodes, SIZE_BYTES, Sockets(), folder, 60.0, settle_s=0.1, settings=settings)


def test_peers_behind_one_router_are_linked_in_their_own_network_and_punch_a_hole_out_of_it(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "port-restricted", None, 1, None)) as publish:
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"direct"}, "a link at home")
        outside = [("peer-1", "peer-3"), ("peer-2", "peer-3")]
        until(lambda: any("punched" in ways(tmp_path, *pair) for pair in outside), "a hole")
        assert set(publish("publish").seconds) == {1, 2, 3}


@pytest.mark.slow
def test_peers_wrongly_declared_as_one_network_fall_back_to_another_transport(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "port-restricted", None, None)) as publish:
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"punched"}, "a hole")
        said = [line["event"] for name in ("peer-1", "peer-2") for line in logged(tmp_path)[name]]
        assert said.count("address for peers of the local network") == 2
        assert set(publish("publish").seconds) == {1, 2}
