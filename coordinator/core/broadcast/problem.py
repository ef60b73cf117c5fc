"""Solve one relay plan from data that nothing changes, so that a large plan can be made beside the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.core.broadcast.assignments import AssignmentMaker, NeighbourKey
from coordinator.core.broadcast.mesh import plan_mesh
from coordinator.core.broadcast.nodes import Plan, PlanShape, RelayNode
from coordinator.core.broadcast.sites import as_units, find_sites, with_sites
from coordinator.core.broadcast.tree_groups import Groups
from coordinator.core.broadcast.trees import plan_trees
from coordinator.core.events.actions import Assignment, Neighbour
from rollcast.wire.ids import PeerId, StripeId

MESH_AGAIN_SHARE = 0.75  # share of mesh_peers_max below which a shrinking fleet returns to a mesh: no flapping


@dataclass(frozen=True, slots=True)
class RelaySolution:
    """A plan, the assignment of every member in the order they joined, and what the next plan continues from.

    ``of_units`` is the plan in which each site counts as one member (sites.py).
    """

    plan: Plan
    of_units: Plan
    parts: Mapping[PeerId, Assignment]
    groups: Groups | None  # if the plan is of trees
    stripe_ids: dict[PeerId, StripeId]  # if the plan is a mesh
    neighbours: dict[NeighbourKey, Neighbour]


class RelayProblem:
    """One plan to make. Its solution follows from what it was made with, whichever thread solves it, and when."""

    def __init__(
        self,
        nodes: Sequence[RelayNode],
        root: RelayNode,
        uplinks: Mapping[PeerId, float],
        shape: PlanShape,
        before: RelaySolution | None,
    ) -> None:
        """
        Args:
            nodes: all members in the order they joined, the root among them.
            uplinks: upload of every member to plan with, in bytes a second.
            before: the solution in force, which is changed as little as possible; None for a first plan.
        """
        self.nodes = nodes
        self.uplinks = uplinks
        self._root = root
        self._shape = shape
        self._before = before
        self._solution: RelaySolution | None = None

    def solve(self) -> RelaySolution:
        """Return the solution; only the first call computes it."""
        if self._solution is None:
            self._solution = self._solve()
        return self._solution

    def _solve(self) -> RelaySolution:
        before = self._before
        others = [node for node in self.nodes if node is not self._root]
        sites = find_sites(others, self._root, self.uplinks)
        uplinks = dict(self.uplinks) | {site.head.peer_id: site.uplink_bytes_per_second for site in sites}
        of_units, groups, stripe_ids = self._plan(as_units(others, sites), uplinks)
        plan = with_sites(of_units, sites, self.nodes)
        maker = AssignmentMaker(self._shape, {} if before is None else before.neighbours)
        parts = maker.make(self.nodes, plan)
        return RelaySolution(plan, of_units, parts, groups, stripe_ids, maker.neighbours)

    def _plan(
        self, others: Sequence[RelayNode], uplinks: Mapping[PeerId, float]
    ) -> tuple[Plan, Groups | None, dict[PeerId, StripeId]]:
        before, limit = self._before, self._shape.mesh_peers_max
        stripe_ids = {} if before is None else before.stripe_ids
        if before is not None and before.plan.mode == "trees":
            limit = int(MESH_AGAIN_SHARE * limit)
        if len(others) <= limit:
            plan, stripe_ids = plan_mesh(others, self._root, uplinks, stripe_ids)
            return plan, None, stripe_ids
        kept = None
        if before is not None and before.groups is not None and before.plan.root == self._root.peer_id:
            kept = (before.of_units, before.groups)
        plan, groups = plan_trees(others, self._root, uplinks, self._shape.stripes, kept)
        return plan, groups, stripe_ids
