"""A peer that is receiving, what its neighbours claim and send, and what it is expected to ask of them."""

from __future__ import annotations

from collections.abc import Sequence

from peer.relay.core.state.actions import (
    Action,
    SendRequest,
    SendWant,
)
from peer.relay.core.state.events import (
    HaveReceived,
    LinkId,
)
from tests.peer.relay.relay_steps import KEY, Steps, bitmap, neighbour, plan

ORIGIN, A, B, C = 1, 2, 3, 4  # links
STRIPE = 9  # not passed on here
CHUNKS = 100
NEAR = neighbour("c", lan=True)
FALLBACK = neighbour("far", we_dial=True)
FALLBACK_LINK = 8


def peer(chunks: int = CHUNKS, *, pushed: bool = True, found: Sequence[int] = ()) -> Steps:
    """Return a peer that is receiving, linked to the origin and two neighbours; a third peer can be dialled."""
    steps = Steps()
    neighbours = [neighbour("origin", "origin"), neighbour("a"), neighbour("b")]
    parents = ("origin", "a", "b") if pushed else ()
    steps.tell(plan(*neighbours, parents=parents, fallbacks=(FALLBACK,)))
    steps.up(ORIGIN, "origin", "origin")
    steps.up(A, "a")
    steps.up(B, "b")
    steps.receive(chunks, found=found)
    return steps


def want(link: int, *, chunk_list: bool = False) -> SendWant:
    return SendWant(LinkId(link), KEY, chunk_list)


def request(link: int, *indices: int) -> SendRequest:
    return SendRequest(LinkId(link), KEY, indices)


def has(steps: Steps, link: int, *indices: int, chunks: int = CHUNKS, complete: bool = False) -> list[Action]:
    """Return the event that the other end reports what it holds."""
    return steps.tell(HaveReceived(LinkId(link), KEY, chunks, bitmap(chunks, *indices), complete))


def push_all(steps: Steps, indices: Sequence[int], every_s: float = 0.01) -> list[Action]:
    actions: list[Action] = []
    for index in indices:
        steps.now += every_s
        actions += steps.chunk(A, index, STRIPE)
    return actions
