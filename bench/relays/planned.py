"""Make the coordinator's own plans for a simulated network, with the rates that nodes really have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.relays.story import name_of
from bench.wan.scenarios import BYTES_PER_MEGABIT, Node, site_of
from coordinator.core.broadcast.planner import PlanShape, RelayNode, RelayPlanner
from coordinator.shell.peer_sender import plan_message
from peer.relay.codec import plan_of
from peer.relay.core.state.events import PlanChanged
from rollcast.wire.ids import PlanId


class CoordinatorPlans:
    """A planner for RelayNetwork.

    Args:
        nodes: the nodes, with the rates that the coordinator assumes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._planner = RelayPlanner(PlanShape())
        self._numbers = {name_of(number): number for number in range(len(nodes))}

    def __call__(self, _plan_id: PlanId, numbers: Sequence[int]) -> Mapping[int, PlanChanged]:
        plans = self._planner.replan([self._relay_node(number, numbers) for number in numbers])
        return {self._numbers[plan.peer_id]: plan_of(plan_message(plan).relay_plan) for plan in plans}

    def _relay_node(self, number: int, alive: Sequence[int]) -> RelayNode:
        site, name = site_of(number, self._nodes), name_of(number)
        node = self._nodes[number if site is None else site]
        beside = [] if site is None else [one for one in alive if site_of(one, self._nodes) == site and one != number]
        return RelayNode(
            name,
            "peer" if number else "origin",
            f"{name}:1",
            may_relay=True,
            uplink_bytes_per_second=node.up_mbit_s * BYTES_PER_MEGABIT,
            downlink_bytes_per_second=node.down_mbit_s * BYTES_PER_MEGABIT,
            rtt_s=4e-3 * node.delay_ms,
            site="" if site is None else f"site-{site}",
            site_links=frozenset(map(name_of, beside)),
        )
