from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.broadcast.plan_rate import depth_of, plan_rate
from coordinator.core.broadcast.nodes import Plan, RelayNode, Stripe
from rollcast.wire.ids import PeerId, StripeId

INFINITE = float("inf")
ROOT, A, B, C = (PeerId(name) for name in ("o", "a", "b", "c"))


def plan(*stripes: tuple[dict[PeerId, PeerId], float]) -> Plan:
    made = tuple(Stripe(StripeId(k), parents, share) for k, (parents, share) in enumerate(stripes, start=1))
    return Plan(ROOT, "trees", made, 0.0, {})


def test_a_plans_rate_is_that_of_its_fullest_uplink() -> None:
    chain = plan(({A: ROOT, B: A, C: B}, 1.0))
    assert plan_rate(chain, {ROOT: 9.0, A: 5.0, B: 7.0, C: 0.0}, {}) == 5.0
    star = plan(({A: ROOT, B: ROOT, C: ROOT}, 1.0))
    assert plan_rate(star, {ROOT: 9.0, A: 5.0, B: 7.0, C: 0.0}, {}) == 3.0
    assert plan_rate(star, {ROOT: 9.0, A: 5.0, B: 7.0, C: 0.0}, {A: 1.0}) == 4.0
    assert (
        plan_rate(chain, {ROOT: 9.0, A: 5.0, B: 7.0, C: 0.0}, {B: 2.0}) == 2.0
    )  # it relays no faster than it receives
    assert plan_rate(plan(), {ROOT: 9.0}, {}) == 0.0


rates = st.sampled_from([1.0, 2.0, 5.0, 20.0])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(rates, min_size=4, max_size=4))
def test_the_evaluator_agrees_with_trying_rates(data: st.DataObject, uplinks: list[float]) -> None:
    """Brute force: the largest of many rates at which no node sends more than it can."""
    trees = [{A: ROOT, B: A, C: A}, {B: ROOT, A: B, C: B}, {C: ROOT, A: C, B: A}, {A: ROOT, B: ROOT, C: ROOT}]
    shares = data.draw(st.sampled_from([(1.0, 0.0), (0.5, 0.5), (0.25, 0.75)]))
    chosen = [data.draw(st.sampled_from(trees)) for _ in shares]
    known = dict(zip((ROOT, A, B, C), uplinks, strict=True))

    def carried(rate: float) -> bool:
        sent = dict.fromkeys(known, 0.0)
        for parents, share in zip(chosen, shares, strict=True):
            for parent in parents.values():
                sent[parent] += rate * share
        return all(sent[node] <= known[node] + 1e-9 for node in known) and rate <= known[ROOT]

    found = plan_rate(plan(*zip(chosen, shares, strict=True)), known, {})
    assert carried(found)
    assert not any(carried(found * more) for more in (1.001, 1.5, 3.0))


def test_depth_counts_hops() -> None:
    assert depth_of({}, ROOT) == 0
    assert depth_of({C: B, A: ROOT, B: A}, ROOT) == 3


def test_two_that_cannot_be_dialled_reach_each_other_not() -> None:
    def node(address: str) -> RelayNode:
        return RelayNode(A, "peer", address, True)

    reached = [node(first).reaches(node(second)) for first, second in product(("", "a:1"), repeat=2)]
    assert reached == [False, True, True, True]


def test_two_of_one_site_reach_each_other_there_if_both_report_an_address() -> None:
    one = RelayNode(A, "peer", "", True, site="x", local_address="192.168.1.2:7420")
    other = RelayNode(B, "peer", "", True, site="x", local_address="192.168.1.3:7420")
    assert one.reaches(other)
    for apart in ({"site": "y"}, {"site": ""}, {"local_address": ""}, {"avoid": frozenset({A})}):
        assert not replace(other, **apart).reaches(one)
