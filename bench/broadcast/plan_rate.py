"""Judge relay plans in the fluid model: bytes flow without latency or loss, and only access links limit them."""

from __future__ import annotations

from collections.abc import Mapping

from capacity.model.broadcast_bound import level_for
from coordinator.core.broadcast.nodes import Parents, Plan
from rollcast.wire.ids import PeerId


def plan_rate(plan: Plan, uplinks: Mapping[PeerId, float], downlinks: Mapping[PeerId, float]) -> float:
    """Return the largest rate at which no uplink carries more than it can, in bytes a second for every receiver.

    A receiver whose downlink is slower takes what it can and costs its parents no more than that. A downlink that is
    not given limits nothing; that of a relay must take what the relay forwards. Returns 0 without receivers.
    """
    loads: dict[PeerId, list[tuple[float, float]]] = {}
    passed_on: dict[PeerId, float] = {}  # shares of the stripes that the member forwards
    infinite = float("inf")
    for stripe in plan.stripes:
        if stripe.share > 0:
            for child, parent in stripe.parents.items():
                loads.setdefault(parent, []).append((stripe.share, downlinks.get(child, infinite)))
            for parent in set(stripe.parents.values()):
                passed_on[parent] = passed_on.get(parent, 0.0) + stripe.share
    rate = uplinks[plan.root]
    for parent, children in loads.items():
        rate = min(rate, level_for(uplinks[parent], children), downlinks.get(parent, infinite) / passed_on[parent])
    return rate if loads else 0.0


def depth_of(parents: Parents, root: PeerId) -> int:
    """Return the hops from the root to the furthest member."""
    depths = {root: 0}
    for child in parents:
        path = []
        while child not in depths:
            path.append(child)
            child = parents[child]
        for one in reversed(path):
            depths[one] = depths[parents[one]] + 1
    return max(depths.values())
