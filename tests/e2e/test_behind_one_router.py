"""Test two peers behind one router (a lab or a home) that drops what they send to its own address."""

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


def case(folder: Path, nat: Nat, *, beside: int | None) -> Case:
    """Return a case with peers 1 and 2, declared as one site, behind one router or each behind its own."""
    home = Node(80, 160, 5, nat)
    nodes = (Node(80, 160, 5), home, replace(home, beside=beside))
    settings = ("coordinator.relay.lan_preferred=true",)
    return Case(nodes, SIZE_BYTES, Sockets(), folder, 60.0, settle_s=0.1, settings=settings)


def test_peers_behind_one_router_are_linked_in_their_own_network(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "symmetric", beside=1)) as publish:  # no hole opens through it
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"direct"}, "a link at home")
        assert set(publish("publish").seconds) == {1, 2}


@pytest.mark.slow
def test_peers_wrongly_declared_as_one_network_fall_back_to_another_transport(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "port-restricted", beside=None)) as publish:
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"punched"}, "a hole")
        said = [line["event"] for name in ("peer-1", "peer-2") for line in logged(tmp_path)[name]]
        assert said.count("address for peers of the local network") == 2
        assert set(publish("publish").seconds) == {1, 2}
