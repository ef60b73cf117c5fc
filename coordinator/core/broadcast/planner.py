"""Plan which members relay versions to which: stripes, each a tree rooted at the origin, that change little.

Up to a few dozen members all relay to all (mesh.py); above that stripes are interior-disjoint trees of bounded degree
(trees.py). Both are made from measured uplinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from coordinator.core.broadcast.assignments import children_of
from coordinator.core.broadcast.nodes import Plan, PlanMode, PlanShape, RelayNode
from coordinator.core.broadcast.problem import RelayProblem, RelaySolution
from coordinator.core.events.actions import Assignment, SendPlan
from rollcast.wire.ids import PeerId, PlanId

__all__ = ["PlanShape", "RelayNode", "RelayPlanner"]

HANDED_OVER_MAX = 512  # assignments in one turn, of some 20 us each; a plan that is solved in line has no more
_MOVED_SHARE = 0.25  # a rate that changed by a smaller share keeps its value in plans
_SLOWED_SHARE = 0.5  # share of the planned rate below which the plan is wrong enough to be changed soon
_UPLINK_MIN = 1.0  # bytes a second; no plan divides by zero

Drift = Literal["none", "learned", "moved", "slowed"]


class RelayPlanner:
    """Keeps the plan in force, and the assignment that each member was sent last."""

    def __init__(self, shape: PlanShape, after: int = 0) -> None:
        self._shape = shape
        self._sent: dict[PeerId, Assignment] = {}
        self._previous: dict[PeerId, Assignment] = {}  # a member's assignment before its sources last changed
        self._uplinks: Mapping[PeerId, float] = {}  # assumed by the plan, in bytes a second
        self._measured: set[PeerId] = set()  # members whose uplink in the plan was measured
        self._assumed = shape.unknown_uplink_bytes_per_second  # for uplinks without a measurement
        self._solution: RelaySolution | None = None  # that of the plan in force
        self._is_beside = False  # whether it was solved beside the loop
        self._unsent: deque[PeerId] = deque()  # members whose changed assignments are still to be handed over
        self.plan: Plan | None = None
        self._after = after
        self.plan_id = PlanId(after)

    # ---------------------------------------------------------------- questions

    @property
    def mode(self) -> PlanMode:
        """Kind of the plan in force: none, mesh or trees."""
        return "none" if self.plan is None else self.plan.mode

    @property
    def stripe_count(self) -> int:
        """Stripes of the plan in force, the origin's direct copies among them."""
        return 0 if self.plan is None else len(self.plan.stripes)

    @property
    def plans_made(self) -> int:
        """Number of plans that this coordinator made; their ids continue those of earlier coordinators."""
        return self.plan_id - self._after

    def assignment_of(self, peer_id: PeerId) -> Assignment | None:
        """Return the assignment that this member was sent last; None if there is none."""
        return self._sent.get(peer_id)

    def parents_of(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        """Return the members that send this member chunks of some stripe."""
        part = self._sent.get(peer_id)
        return () if part is None else tuple(part.neighbours[index].peer_id for index in part.parents)

    def children_of(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        """Return the members to which this member sends chunks of some stripe, the origin's direct copies included."""
        part = self._sent.get(peer_id)
        if part is None:
            return ()
        if part.direct_copies:
            return tuple(one.peer_id for one in part.neighbours)
        indices = sorted({index for stripe in part.stripes for index in stripe.children})
        return tuple(part.neighbours[index].peer_id for index in indices)

    def may_receive_from(self, peer_id: PeerId, source: PeerId) -> bool:
        """Whether ``source`` is a neighbour or fallback of this peer, or was before these last changed."""
        return any(source in _sources(parts.get(peer_id)) for parts in (self._sent, self._previous))

    def drift(self, peer_id: PeerId, uplink_bytes_per_second: float | None, confidence: float) -> Drift:
        """Return how far this member's uplink has departed from the rate that the plan assumes."""
        planned = self._uplinks.get(peer_id)
        if planned is None or uplink_bytes_per_second is None:
            return "none"
        uplink = self._trusted(uplink_bytes_per_second, confidence)
        if uplink < _SLOWED_SHARE * planned:
            return "slowed"
        if peer_id not in self._measured:
            return "learned"
        return "moved" if abs(uplink - planned) > _MOVED_SHARE * planned else "none"

    # ---------------------------------------------------------------- changes

    def replan(self, nodes: Sequence[RelayNode]) -> list[SendPlan]:
        """Make a new plan and return the assignments that changed, in the order the nodes joined.

        Without an origin the plan stays as it is, and nothing is returned.
        """
        problem = self.problem(nodes)
        return [] if problem is None else self.take(problem, {node.peer_id for node in nodes})

    def problem(self, nodes: Sequence[RelayNode], *, beside: bool = False) -> RelayProblem | None:
        """Return the problem of a new plan for these members; None if there is no origin.

        Args:
            beside: whether it is solved beside the loop. What a plan continues from stays in the process that solved
                the plan before, so that the first plan after a change of this begins afresh.
        """
        present = {node.peer_id for node in nodes}
        self._sent = {peer_id: part for peer_id, part in self._sent.items() if peer_id in present}
        root = next((node for node in nodes if node.role == "origin"), None)
        if root is None:
            return None
        before = self._solution if beside == self._is_beside else None
        self._is_beside = beside
        return RelayProblem(nodes, root, self._effective_uplinks(nodes), self._shape, before)

    def take(self, problem: RelayProblem, present: Container[PeerId]) -> list[SendPlan]:
        """Put a problem's plan into force, and return assignments of present members that changed, in order.

        ``hand_over`` returns those that are left: thousands of them would hold the loop.
        """
        solution = problem.solve()
        self._solution, self.plan, self._uplinks = solution, solution.plan, problem.uplinks
        self._measured = {node.peer_id for node in problem.nodes if node.uplink_bytes_per_second is not None}
        parts = {peer_id: part for peer_id, part in solution.parts.items() if peer_id in present}
        changed = [peer_id for peer_id, part in parts.items() if not _as_good(self._sent.get(peer_id), part)]
        self._previous = {peer_id: part for peer_id, part in self._previous.items() if peer_id in parts}
        self._unsent = deque(changed)
        if not changed:
            return []
        self.plan_id = PlanId(self.plan_id + 1)
        return self.hand_over(present)

    @property
    def has_unsent(self) -> bool:
        """Whether assignments of the plan in force are left to hand over."""
        return bool(self._unsent)

    def hand_over(self, present: Container[PeerId]) -> list[SendPlan]:
        """Return the next changed assignments of present members, HANDED_OVER_MAX at most."""
        handed: list[SendPlan] = []
        while self._unsent and self._solution is not None and len(handed) < HANDED_OVER_MAX:
            peer_id = self._unsent.popleft()
            part, sent = self._solution.parts.get(peer_id), self._sent.get(peer_id)
            if part is None or peer_id not in present:
                continue
            if sent is not None and _sources(sent) != _sources(part):
                self._previous[peer_id] = sent
            self._sent[peer_id] = part
            handed.append(SendPlan(peer_id, self.plan_id, part))
        return handed

    def _effective_uplinks(self, nodes: Sequence[RelayNode]) -> dict[PeerId, float]:
        """Return the uplinks to plan with: measurements as far as they are trusted, unchanged if they moved little."""
        known = [node.uplink_bytes_per_second for node in nodes if node.uplink_bytes_per_second is not None]
        self._assumed = self._shape.unknown_uplink_bytes_per_second
        if known:
            self._assumed = min(self._assumed, median(known))
        uplinks = {}
        for node in nodes:
            uplink = self._trusted(node.uplink_bytes_per_second, node.uplink_confidence)
            before = self._uplinks.get(node.peer_id)
            uplinks[node.peer_id] = uplink
            if before is not None and abs(uplink - before) <= _MOVED_SHARE * before:
                uplinks[node.peer_id] = before
        return uplinks

    def _trusted(self, uplink: float | None, confidence: float) -> float:
        if uplink is None:
            return self._assumed
        return max(_UPLINK_MIN, confidence * uplink + (1 - confidence) * min(uplink, self._assumed))

    def discard(self, peer_id: PeerId) -> None:
        """Discard what this peer was sent, because it opened a new session and needs its assignment again."""
        self._sent.pop(peer_id, None)

    def validate(self) -> None:
        """Raise AssertionError if a stripe of the plan is no tree below the origin, or shares do not add up to 1."""
        if self.plan is None:
            return
        shares = sum(stripe.share for stripe in self.plan.stripes)
        assert not self.plan.stripes or abs(shares - 1.0) < 1e-6, "shares of stripes add up to 1"
        for parents in (*(stripe.parents for stripe in self.plan.stripes), self.plan.list_parents):
            children = children_of(parents)
            reached, level = 0, [self.plan.root]
            while level:
                level = [child for one in level for child in children.get(one, ())]
                reached += len(level)
            assert reached == len(parents), "a stripe of the relay plan is no tree"


def _sources(part: Assignment | None) -> frozenset[PeerId]:
    """Return the peers from which the member may receive chunks; empty if it has no assignment."""
    return frozenset() if part is None else frozenset(one.peer_id for one in (*part.neighbours, *part.fallbacks))


def _as_good(sent: Assignment | None, part: Assignment) -> bool:
    """Whether a member that was sent one assignment need not be sent the other: expected rates may differ a little."""
    if sent is None or sent == part:
        return sent is not None
    if len(sent.stripes) != len(part.stripes) or replace(sent, stripes=part.stripes) != part:
        return False
    return all(
        replace(old, bytes_per_second=0.0) == replace(new, bytes_per_second=0.0)
        and abs(old.bytes_per_second - new.bytes_per_second) <= _MOVED_SHARE * old.bytes_per_second
        for old, new in zip(sent.stripes, part.stripes, strict=True)
    )
