"""Drive one relay core step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peer.links.neighbours import EncodingKey, Neighbour
from peer.relay.core.core import RelayCore
from peer.relay.core.state.actions import Action, SendChunk, Verify
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import (
    ChunkArrived,
    ChunkListReceived,
    ChunkSent,
    ChunkVerified,
    EncodingKnown,
    Event,
    LinkId,
    LinkUp,
    PlanChanged,
    StoreReady,
    Stripe,
    Tick,
    VersionRestored,
)
from peer.relay.core.state.relay_state import LinkState, RelaySettings, RelayState
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, PlanId, StripeId, Version
from rollcast.wire.links.frames import NO_STRIPE

CHUNK_BYTES = 1000


def key_of(version: int, encoding_id: int = 0) -> EncodingKey:
    return EncodingKey(Version(version), EncodingId(encoding_id))


KEY = key_of(1)


def neighbour(name: str, role: str = "peer", *, we_dial: bool = False, lan: bool = False) -> Neighbour:
    return Neighbour(PeerId(name), role, f"{name}:1", we_dial, lan)


def plan(
    *neighbours: Neighbour,
    stripes: Mapping[int, Sequence[str]] | None = None,
    relays: int = 0,
    heirs: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    adopted: Mapping[int, Sequence[str]] | None = None,
    guardian: str | None = None,
    lists: Sequence[str] = (),
    parents: Sequence[str] = (),
    fallbacks: Sequence[Neighbour] = (),
    direct: bool = False,
    plan_id: int = 1,
) -> PlanChanged:
    """Return a plan; stripes map their number to the names of the children, and so do heirs and adopted.

    Args:
        relays: how many of each stripe's children, the first ones, pass chunks on.
    """

    def made(one: int, names: Sequence[str]) -> Stripe:
        pairs = tuple((PeerId(child), PeerId(heir)) for child, heir in (heirs or {}).get(one, ()))
        others = tuple(map(PeerId, (adopted or {}).get(one, ())))
        above = None if guardian is None else PeerId(guardian)
        children = tuple(map(PeerId, names))
        return Stripe(StripeId(one), children, heirs=pairs, adopted=others, guardian=above, relays=relays)

    return PlanChanged(
        PlanId(plan_id),
        tuple(neighbours),
        tuple(made(one, names) for one, names in (stripes or {}).items()),
        tuple(map(PeerId, lists)),
        tuple(map(PeerId, parents)),
        tuple(fallbacks),
        direct,
    )


def bitmap(size: int, *indices: int) -> bytes:
    return ChunkSet(size, indices).bitmap


class Steps:
    """A core and its clock. Its state is checked after every event.

    Args:
        settings: settings that differ from the defaults.
    """

    def __init__(self, role: str = "peer", **settings: Any) -> None:
        self.core = RelayCore(RelaySettings(role, **settings))
        self.now = 100.0

    @property
    def state(self) -> RelayState:
        return self.core.state

    def link(self, link: int) -> LinkState:
        return self.state.links[LinkId(link)]

    def tell(self, *events: Event) -> list[Action]:
        """Return all actions that follow from the events."""
        actions: list[Action] = []
        for event in events:
            actions += self.core.handle(event, self.now)
            self.state.validate()
        return actions

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass, then tick once."""
        self.now += seconds
        return self.tell(Tick())

    def ticks(self, seconds: float, step_s: float = 0.05) -> list[Action]:
        """Let time pass in the shell's ticks."""
        actions: list[Action] = []
        for _ in range(round(seconds / step_s)):
            actions += self.wait(step_s)
        return actions

    def up(
        self, link: int, name: str, role: str = "peer", *, dialled: bool = False, rtt_s: float = 0.0
    ) -> list[Action]:
        return self.tell(LinkUp(LinkId(link), PeerId(name), role, dialled, rtt_s))

    def receive(
        self,
        chunks: int,
        key: EncodingKey = KEY,
        found: Sequence[int] = (),
        *,
        announced: bool = True,
        pushed: bool = True,
    ) -> None:
        """Make an encoding and its list known, and open its store."""
        known = EncodingKnown(key, chunks, CHUNK_BYTES, announced=announced, listed=True, pushed=pushed)
        self.tell(known, StoreReady(key, bitmap(chunks, *found)))

    def hold(self, chunks: int, key: EncodingKey = KEY) -> list[Action]:
        return self.tell(VersionRestored(key, chunks, CHUNK_BYTES))

    def list_comes(self, link: int, key: EncodingKey = KEY, *, valid: bool = True) -> list[Action]:
        return self.tell(ChunkListReceived(LinkId(link), key, valid))

    def chunk(self, link: int, index: int, stripe: int = NO_STRIPE, key: EncodingKey = KEY) -> list[Action]:
        """Let a chunk arrive, and be verified if the core asks; return the actions that follow."""
        where = (LinkId(link), key, ChunkIndex(index), StripeId(stripe))
        actions = self.tell(ChunkArrived(*where, CHUNK_BYTES))
        if actions == [Verify(*where)]:
            return self.tell(ChunkVerified(*where, CHUNK_BYTES))
        return actions

    def sent(self, *links: int) -> list[Action]:
        """Note that the chunk in transport on each of these links has left; return the actions that follow."""
        return self.tell(*(ChunkSent(LinkId(link)) for link in links))


def push(link: int, index: int, stripe: int, key: EncodingKey = KEY) -> SendChunk:
    return SendChunk(LinkId(link), key, ChunkIndex(index), StripeId(stripe))


def answer(link: int, index: int, key: EncodingKey = KEY) -> SendChunk:
    """Let a requested chunk arrive."""
    return SendChunk(LinkId(link), key, ChunkIndex(index), NO_STRIPE)
