"""The core's actions as messages to peers."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.actions import Neighbour, RevokeLeases, SendLeases, SendPlan
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import lease_to_pb


def leases_message(action: SendLeases) -> pb.CoordinatorMessage:
    """New leases."""
    return pb.CoordinatorMessage(leases=pb.Leases(leases=[lease_to_pb(lease) for lease in action.leases]))


def revoke_message(action: RevokeLeases) -> pb.CoordinatorMessage:
    """Leases taken back."""
    revoke = pb.LeaseRevoke(lease_ids=action.lease_ids, reason=action.reason)
    return pb.CoordinatorMessage(lease_revoke=revoke)


def plan_message(action: SendPlan) -> pb.CoordinatorMessage:
    """A peer's part of the relay plan."""
    plan = pb.RelayPlan(
        plan_id=action.plan_id,
        parents=_neighbours(action.parents),
        children=_neighbours(action.children),
        fallbacks=_neighbours(action.fallbacks),
    )
    return pb.CoordinatorMessage(relay_plan=plan)


def announcement_message(announcement: pb.VersionAnnouncement) -> pb.CoordinatorMessage:
    """A signed version, exactly as the learner announced it."""
    return pb.CoordinatorMessage(announcement=announcement)


def _neighbours(neighbours: Iterable[Neighbour]) -> list[pb.PlanNeighbour]:
    return [
        pb.PlanNeighbour(peer_id=one.peer_id, role=one.role, address=one.address, we_dial=one.we_dial)
        for one in neighbours
    ]
