from __future__ import annotations

import itertools

import pytest

from coordinator.core.reach.holes import NAT_KINDS, can_punch, hole_class
from peer.reachability.nat_kind import NatKind

#: What `python -m bench holes` finds between real routers.
THROUGH = {
    ("full-cone", "full-cone"),
    ("full-cone", "port-restricted"),
    ("full-cone", "symmetric"),
    ("port-restricted", "port-restricted"),
}


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations_with_replacement(("full-cone", "port-restricted", "symmetric"), 2))
)
def test_the_table_is_what_real_routers_do(one: str, other: str) -> None:
    a, b = (hole_class(nat, "192.0.2.1:7") for nat in (one, other))
    assert can_punch(a, b) == can_punch(b, a) == ((one, other) in THROUGH)


def test_who_punches_from_no_known_port_can_at_most_dial_outwards() -> None:
    assert hole_class("port-restricted", "") == hole_class("full-cone", "") == hole_class("unknown", "1.2.3.4:5") == 0
    assert hole_class("symmetric", "") == 1
    assert can_punch(hole_class("symmetric", ""), hole_class("full-cone", "192.0.2.1:7"))


def test_every_kind_that_a_peer_finds_out_is_known() -> None:
    assert set(NAT_KINDS) == set(NatKind.__args__)  # type: ignore[attr-defined]
