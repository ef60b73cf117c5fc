"""Two peers behind one router, which does not turn round what they send to its own address: a lab, or a home."""

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
    """Peers 1 and 2, which the coordinator takes for members of one site, behind one router or each behind its own."""
    home = Node(80, 160, 5, nat)
    nodes = (Node(80, 160, 5), home, replace(home, beside=beside))
    settings = ("coordinator.relay.lan_preferred=true",)
    return Case(nodes, SIZE_BYTES, Sockets(), folder, 60.0, settle_s=0.1, settings=settings)


def test_they_are_linked_in_their_own_network(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "symmetric", beside=1)) as publish:  # through which no hole opens
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"direct"}, "a link at home")
        assert set(publish("publish").seconds) == {1, 2}


@pytest.mark.slow
def test_where_they_are_not_in_one_network_after_all_the_next_way_is_taken(tmp_path: Path) -> None:
    with rollcast.running(case(tmp_path, "port-restricted", beside=None)) as publish:
        until(lambda: ways(tmp_path, "peer-1", "peer-2") == {"punched"}, "a hole")
        said = [line["event"] for name in ("peer-1", "peer-2") for line in logged(tmp_path)[name]]
        assert said.count("address for peers of the local network") == 2
        assert set(publish("publish").seconds) == {1, 2}
