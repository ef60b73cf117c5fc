"""A relay between the origin and three others, for tests of what it sends to them."""

from __future__ import annotations

from peer.relay.core.state.actions import SendCredit, SendHave
from peer.relay.core.state.events import HaveReceived, LinkId
from tests.peer.relay.relay_steps import KEY, Steps, bitmap, neighbour, plan

ORIGIN, LEFT, RIGHT, OTHER = 1, 2, 3, 4  # links
MINE = 5  # the stripe that we pass on
CHUNKS = 64


def relay(*children: str) -> Steps:
    """Return a relay that is linked to the origin and to others and is receiving; stripe 5 goes to ``children``."""
    steps = Steps()
    neighbours = [neighbour("origin", "origin"), neighbour("left"), neighbour("right")]
    steps.tell(plan(*neighbours, stripes={MINE: children or ("left", "right")}, parents=("origin",)))
    steps.up(ORIGIN, "origin", "origin")
    steps.up(LEFT, "left")
    steps.up(RIGHT, "right")
    steps.up(OTHER, "other")
    steps.receive(CHUNKS)
    return steps


def credit(*indices: int) -> SendCredit:
    return SendCredit(LinkId(ORIGIN), KEY, indices)


def have(link: int, *indices: int, size: int = CHUNKS, complete: bool = False) -> HaveReceived:
    return HaveReceived(LinkId(link), KEY, size, b"" if complete else bitmap(size, *indices), complete)


def told(link: int, *indices: int, size: int = CHUNKS) -> SendHave:
    return SendHave(LinkId(link), KEY, size, bitmap(size, *indices), False)
