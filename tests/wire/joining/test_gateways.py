"""Test how a peer learns of gateways: every peer in an order of its own, in a form that is checked, kept on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.gateways import GATEWAYS_NAMED_MAX, gateways_in, in_turn, save_gateways, saved_gateways

ADDRESSES = ("gw-1.example:7410", "192.0.2.7:7410", "[2001:db8::7]:7410")


def test_each_peer_begins_with_another_gateway_and_has_all() -> None:
    orders = [in_turn(ADDRESSES, PeerId(f"peer-{number}")) for number in range(300)]
    assert all(sorted(order) == sorted(ADDRESSES) for order in orders)
    first = Counter(order[0] for order in orders)
    assert min(first[address] for address in ADDRESSES) > 60
    assert in_turn(ADDRESSES, PeerId("peer-1")) == orders[1]
    assert in_turn((), PeerId("peer-1")) == ()


def test_an_answer_may_name_gateways() -> None:
    assert gateways_in({}) == ()
    assert gateways_in({"gateways": list(ADDRESSES)}) == ADDRESSES


@pytest.mark.parametrize(
    "named", ["gw:1", None, ["gw"], ["gw:1\n"], ["unix:/x:1"], [7], ["gw:1"] * (GATEWAYS_NAMED_MAX + 1)]
)
def test_anything_else_is_refused(named: Any) -> None:
    with pytest.raises(MalformedMessage):
        gateways_in({"gateways": named})


def test_the_list_is_kept(tmp_path: Path) -> None:
    assert saved_gateways(tmp_path) == ()
    save_gateways(tmp_path, ADDRESSES)
    assert saved_gateways(tmp_path) == ADDRESSES
    (tmp_path / "gateways.txt").write_bytes(b"gw:1\n\xff:2\nno address\ngw:3\n")
    assert saved_gateways(tmp_path) == ("gw:1", "gw:3")
    save_gateways(tmp_path, ())
    assert not list(tmp_path.iterdir())
