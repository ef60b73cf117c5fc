"""How members reach each other, for screens and metrics: sums, whatever the number of members. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coordinator.core.decisions.state import CoreState
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import PATHS, REACHABILITIES, Reachability, path_of, reachability_of


@dataclass(frozen=True, slots=True)
class PunchStatus:
    """Holes asked for since this coordinator started.

    Args:
        seconds_mean: from the order to the link; None before the first.
        pairs_left_alone: that failed lately.
    """

    asked: int
    refused: int
    opened: int
    failed: int
    seconds_mean: float | None
    pairs_left_alone: int


@dataclass(frozen=True, slots=True)
class DialBackStatus:
    """Checks of members' addresses since this coordinator started, by how they ended.

    Args:
        unanswered: nobody who was asked said anything.
    """

    dialable: int
    undialable: int
    unanswered: int


@dataclass(frozen=True, slots=True)
class ReachStatus:
    """Words as in rollcast.wire.reach_words.

    Args:
        members: by how they are reached; ``only outwards`` holds those of whom nothing is known yet.
        link_ends: open links by what carries them, as both of their ends report them.
        records: members whose signed record is handed to others.
    """

    members: dict[str, int]
    link_ends: dict[str, int]
    punches: PunchStatus
    dial_backs: DialBackStatus
    records: int


def reachability(state: CoreState, peer_id: PeerId) -> Reachability:
    """Return how others reach a member."""
    reach = state.reach.of(peer_id)
    return reachability_of(dialable=bool(reach.address), punchable=reach.lets_in)


def build_reach_status(state: CoreState) -> ReachStatus:
    """Build the sums over all members from the core's state."""
    members = Counter(reachability(state, member.peer_id) for member in state.members)
    links = Counter(
        path_of(link.transport, lan=link.lan)
        for member in state.members
        if member.facts is not None
        for link in member.facts.links
    )
    figures, dialled = state.reach.punches, state.reach.dial_backs
    return ReachStatus(
        members={word: members[word] for word in REACHABILITIES},
        link_ends={path: links[path] for path in PATHS},
        punches=PunchStatus(
            asked=figures.asked,
            refused=figures.refused,
            opened=figures.opened,
            failed=figures.failed,
            seconds_mean=figures.seconds_sum / figures.opened if figures.opened else None,
            pairs_left_alone=len(state.reach.failures),
        ),
        dial_backs=DialBackStatus(dialled.dialable, dialled.undialable, dialled.unanswered),
        records=state.reach.records,
    )
