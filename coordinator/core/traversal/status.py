"""Sum up how members reach each other, for screens and metrics, whatever the number of members. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import PATHS, REACHABILITIES, Reachability, path_of, reachability_of


@dataclass(frozen=True, slots=True)
class PunchStatus:
    """Hole punches requested since this coordinator started.

    Args:
        seconds_mean: mean seconds from the order to the link; None before the first.
        pairs_left_alone: number of pairs that failed lately and pause.
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
        unanswered: checks of which no dialing member reported a result.
    """

    dialable: int
    undialable: int
    unanswered: int


@dataclass(frozen=True, slots=True)
class ReachStatus:
    """Counts of members and links, in the words of rollcast.wire.reach_words.

    Args:
        members: number by how they are reached; ``only outwards`` includes members of which nothing is known yet.
        link_ends: number of open links by their path, as both of their ends report them.
        records: number of members whose signed record is sent to others.
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


@dataclass(frozen=True, slots=True)
class ReachCounts:
    """Members by how they are reached, and their links by path; counted some members at a time."""

    members: Counter[Reachability] = field(default_factory=Counter)
    link_ends: Counter[str] = field(default_factory=Counter)

    def add(self, state: CoreState, members: Sequence[Member]) -> None:
        """Count these members and the links that they report."""
        self.members.update(reachability(state, member.peer_id) for member in members)
        self.link_ends.update(
            path_of(link.transport, lan=link.lan)
            for member in members
            if member.facts is not None
            for link in member.facts.links
        )


def build_reach_status(state: CoreState, counts: ReachCounts) -> ReachStatus:
    """Build the status from the core's state, and from the counts of all members."""
    figures, dialled = state.reach.punches, state.reach.dial_backs
    return ReachStatus(
        members={word: counts.members[word] for word in REACHABILITIES},
        link_ends={path: counts.link_ends[path] for path in PATHS},
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
