"""The core's actions as messages to peers."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.events.actions import Neighbour, RevokeLeases, SendLeases, SendPlan, SendProbe, TellActivation
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
    part = action.part
    plan = pb.RelayPlan(
        plan_id=action.plan_id,
        neighbours=_neighbours(part.neighbours),
        stripes=[
            pb.PlanStripe(stripe=one.stripe, children=one.children, bytes_per_second=one.bytes_per_second)
            for one in part.stripes
        ],
        list_children=part.list_children,
        parents=part.parents,
        fallbacks=_neighbours(part.fallbacks),
        direct_copies=part.direct_copies,
    )
    return pb.CoordinatorMessage(relay_plan=plan)


def probe_message(action: SendProbe) -> pb.CoordinatorMessage:
    """A measurement of the peer's uplink."""
    probe = pb.Probe(
        probe_id=action.probe_id,
        peer_id=action.to_peer,
        bytes_max=action.bytes_max,
        seconds_max=action.seconds_max,
    )
    return pb.CoordinatorMessage(probe=probe)


def activation_message(action: TellActivation) -> pb.CoordinatorMessage:
    """Whether the peer is on, and why."""
    return pb.CoordinatorMessage(activation=pb.Activation(active=action.active, reason=action.reason))


def announcement_message(announcement: pb.VersionAnnouncement) -> pb.CoordinatorMessage:
    """A signed version, exactly as the learner announced it."""
    return pb.CoordinatorMessage(announcement=announcement)


def _neighbours(neighbours: Iterable[Neighbour]) -> list[pb.PlanNeighbour]:
    return [
        pb.PlanNeighbour(peer_id=one.peer_id, role=one.role, address=one.address, we_dial=one.we_dial, lan=one.lan)
        for one in neighbours
    ]
