"""Count the members for a status, in one pass. Pure.

With 10,000 members and their sessions what a pass reads is in no cache of the processor, so that each further pass
takes the event loop about 10 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.core.members.membership import Member


@dataclass(frozen=True, slots=True)
class Census:
    """The members at one moment."""

    by_role_and_state: Counter[tuple[str, str]]
    tokens_per_s: float  # that all report to generate; before its first heartbeat a member reports 0
    peers_on: tuple[Member, ...]  # peers that may work, as far as orders go
    peers_on_standby: int


def census_of(members: Iterable[Member]) -> Census:
    """Return what a status needs to know of all members."""
    states, tokens_per_s, on, standby = Counter[tuple[str, str]](), 0.0, list[Member](), 0
    for member in members:
        states[member.role, member.state] += 1
        if member.facts is not None:
            tokens_per_s += member.facts.tokens_per_second
        if member.role == "peer":
            if member.reputation.is_on:
                on.append(member)
            elif member.reputation.standby:
                standby += 1
    return Census(states, tokens_per_s, tuple(on), standby)
