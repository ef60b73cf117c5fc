from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.broadcast.nodes import RelayNode
from coordinator.core.broadcast.tree_groups import Groups, make_groups
from rollcast.wire.ids import PeerId

ORIGIN = RelayNode(PeerId("origin"), "origin", "origin:1", True, 100.0)


def node(
    name: str, uplink: float | None = 100.0, *, dialable: bool = True, region: str = "", downlink: float | None = None
) -> RelayNode:
    address = f"{name}:1" if dialable else ""
    return RelayNode(PeerId(name), "peer", address, True, uplink, downlink_bytes_per_second=downlink, region=region)


def groups(*nodes: RelayNode, stripes: int = 4, before: Groups | None = None, root: RelayNode = ORIGIN) -> Groups:
    uplinks = {one.peer_id: one.uplink_bytes_per_second or 50.0 for one in (root, *nodes)}
    return make_groups(nodes, root, uplinks, stripes, before)


def carried(found: Groups) -> list[int]:
    totals = list(found.root_copies)
    for peer_id, stripe in found.stripe_of.items():
        totals[stripe] += found.copies[peer_id]
    return totals


def test_equal_uplinks_share_the_stripes_equally() -> None:
    found = groups(*(node(f"p{index}") for index in range(16)))
    assert found.bytes_per_second == pytest.approx(99.0, rel=0.01)  # the source's, less what keeps plans stable
    assert carried(found) == [17] * 4  # four copies of each relay, and one of the origin
    assert sorted(found.stripe_of.values()) == sorted([0, 1, 2, 3] * 4)


def test_a_strong_origin_sends_further_copies_where_they_lack() -> None:
    root = RelayNode(PeerId("origin"), "origin", "origin:1", True, 1000.0)
    found = groups(*(node(f"p{index}", 25.0) for index in range(30)), root=root)
    assert min(carried(found)) >= 30
    assert sum(found.root_copies) == int(1000.0 * 4 / found.bytes_per_second)


def test_unknown_uplinks_and_those_behind_nat_are_leaves_while_the_others_do() -> None:
    strong = [node(f"p{index}", 300.0) for index in range(8)]
    weak = [node(f"u{index}", None) for index in range(4)] + [node(f"h{index}", dialable=False) for index in range(4)]
    assert set(groups(*strong, *weak).stripe_of) == {one.peer_id for one in strong}
    few = groups(*strong[:2], *weak)
    assert set(few.stripe_of) == {one.peer_id for one in (*strong[:2], *weak)}


def test_relays_of_a_region_are_spread_over_the_stripes() -> None:
    nodes = [node(f"p{index}", region=f"r{index % 2}") for index in range(16)]
    found = groups(*nodes)
    assert {(one.region, found.stripe_of[one.peer_id]) for one in nodes} == {
        (r, k) for r in ("r0", "r1") for k in range(4)
    }


def test_slow_downlinks_cost_only_what_they_take() -> None:
    found = groups(*(node(f"p{index}", downlink=10.0 if index < 8 else None) for index in range(16)))
    assert found.bytes_per_second == pytest.approx(99.0, rel=0.01)
    assert found.costs == {f"p{index}": 10.0 / found.bytes_per_second for index in range(8)}


def test_groups_and_rate_stay_when_one_joins_or_leaves() -> None:
    nodes = [node(f"p{index}", 40.0 + 7 * (index % 13)) for index in range(120)]
    before = groups(*nodes, stripes=8)
    after = groups(*nodes[1:], node("new"), stripes=8, before=before)
    assert after.bytes_per_second == before.bytes_per_second
    moved = [one for one, stripe in after.stripe_of.items() if before.stripe_of.get(one, stripe) != stripe]
    assert len(moved) <= 1


pools = st.lists(st.tuples(st.sampled_from([0.0, 3.0, 20.0, 100.0, 700.0]), st.booleans()), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None)
@given(pools, st.sampled_from([1, 2, 8]))
def test_no_relay_carries_more_than_its_uplink(pool: list[tuple[float, bool]], stripes: int) -> None:
    nodes = [node(f"p{index}", uplink, dialable=dialable) for index, (uplink, dialable) in enumerate(pool)]
    found = groups(*nodes, stripes=stripes)
    rate = found.bytes_per_second
    assert 0 < rate <= 100.0
    for one in nodes:
        copies = found.copies.get(one.peer_id, 0)
        assert copies * rate / stripes <= (one.uplink_bytes_per_second or 50.0) + 1e-6
        assert (one.peer_id in found.stripe_of) == (copies > 0)
    assert min(found.root_copies) >= 1
    assert sum(found.root_copies) <= max(stripes, 100.0 * stripes / rate)
