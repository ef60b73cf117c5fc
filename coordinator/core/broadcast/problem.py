"""Solve one relay plan from data that nothing changes, so that another process can make a large plan."""

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
# Trees are grown anew once this share of the members has an uplink that differs by this factor from the one for which
# their place was chosen.
_MISPLACED_SHARE = 0.25
_MISPLACED_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Continuation:
    """What the next plan continues from. In ``of_units`` each site counts as one member (sites.py).

    Args:
        placed_for: unit -> uplink in bytes a second for which its place in the trees was chosen.
    """

    of_units: Plan
    groups: Groups | None  # if the plan is of trees
    stripe_ids: dict[PeerId, StripeId]  # if the plan is a mesh
    neighbours: dict[NeighbourKey, Neighbour]
    placed_for: Mapping[PeerId, float]


@dataclass(frozen=True, slots=True)
class RelaySolution:
    """A plan, and the assignment of every member in the order they joined.

    ``continuation`` is None if the process that solved the problem keeps it.
    """

    plan: Plan
    parts: Mapping[PeerId, Assignment]
    continuation: Continuation | None


class RelayProblem:
    """One plan to make. Its solution follows from what it was made with, whichever process solves it, and when."""

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
        self.root = root
        self.uplinks = uplinks
        self.shape = shape
        self.before = before
        self._solution: RelaySolution | None = None

    def begin_afresh(self) -> None:
        """Solve it as if there were no solution in force."""
        self.before = None

    def solved(self, solution: RelaySolution) -> None:
        """Take over the solution that another process computed."""
        self._solution = solution

    def solve(self) -> RelaySolution:
        """Return the solution; only the first call computes it."""
        if self._solution is None:
            self._solution = self._solve()
        return self._solution

    @property
    def _continued(self) -> Continuation | None:
        """What the solution in force left for this one."""
        return None if self.before is None else self.before.continuation

    def _solve(self) -> RelaySolution:
        before = self._continued
        others = [node for node in self.nodes if node is not self.root]
        sites = find_sites(others, self.root, self.uplinks)
        uplinks = dict(self.uplinks) | {site.head.peer_id: site.uplink_bytes_per_second for site in sites}
        units = as_units(others, sites)
        trees = self._continued_trees(units, uplinks)
        of_units, groups, stripe_ids = self._plan(units, uplinks, trees)
        known = {} if trees is None else trees.placed_for
        placed_for = {unit.peer_id: known.get(unit.peer_id, uplinks[unit.peer_id]) for unit in units}
        plan = with_sites(of_units, sites, self.nodes)
        maker = AssignmentMaker(self.shape, {} if before is None else before.neighbours)
        parts = maker.make(self.nodes, plan)
        return RelaySolution(plan, parts, Continuation(of_units, groups, stripe_ids, maker.neighbours, placed_for))

    def _continued_trees(self, units: Sequence[RelayNode], uplinks: Mapping[PeerId, float]) -> Continuation | None:
        """Return what the trees continue from; None if they are to be grown anew."""
        before = self._continued
        if before is None or before.groups is None or before.of_units.root != self.root.peer_id:
            return None
        return None if _are_misplaced(units, before.placed_for, uplinks) else before

    def _plan(
        self, others: Sequence[RelayNode], uplinks: Mapping[PeerId, float], trees: Continuation | None
    ) -> tuple[Plan, Groups | None, dict[PeerId, StripeId]]:
        before, limit = self._continued, self.shape.mesh_peers_max
        stripe_ids = {} if before is None else before.stripe_ids
        if before is not None and before.of_units.mode == "trees":
            limit = int(MESH_AGAIN_SHARE * limit)
        if len(others) <= limit:
            plan, stripe_ids = plan_mesh(others, self.root, uplinks, stripe_ids)
            return plan, None, stripe_ids
        kept = None if trees is None or trees.groups is None else (trees.of_units, trees.groups)
        plan, groups = plan_trees(others, self.root, uplinks, self.shape.stripes, kept)
        return plan, groups, stripe_ids


def _are_misplaced(
    units: Sequence[RelayNode], placed_for: Mapping[PeerId, float], uplinks: Mapping[PeerId, float]
) -> bool:
    """Whether the trees were grown for other uplinks than these, as a first plan is, which knows none of them.

    A tree whose edges are all kept would have its weakest relays at the top forever.
    """
    known = [unit.peer_id for unit in units if unit.peer_id in placed_for]
    misplaced = sum(
        max(uplinks[one], placed_for[one]) > _MISPLACED_TIMES * min(uplinks[one], placed_for[one]) for one in known
    )
    return misplaced > _MISPLACED_SHARE * len(known)
