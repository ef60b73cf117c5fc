"""What the relay's core remembers: links, encodings, the plan, who misbehaved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from peer.chunk_set import ChunkSet
from peer.relay_actions import Action
from peer.relay_events import EncodingKey, LinkId, Neighbour, PlanChanged
from rollcast.wire.ids import PeerId, PlanId, Version

Phase = Literal["waiting", "opening", "receiving", "finishing", "held"]
IN_FLIGHT_PHASES: tuple[Phase, ...] = ("waiting", "opening", "receiving")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What the operator sets, and bounds that follow from the protocol.

    Args:
        role: "peer" or "origin"; an origin takes versions in the order in which the learner sends them.
        credit_chunks: chunks that one link may have on the way to us, verified ones not counted.
        stall_timeout_s: without a new chunk for this long, the next source is asked too.
        store_retry_s: a version that could not be stored is received again after this long.
    """

    role: str
    credit_chunks: int = 32
    stall_timeout_s: float = 3.0
    store_retry_s: float = 15.0
    # Failures of the store in a row, with no version stored in between, after which it is no use to go on.
    store_failures_most: int = 3
    # Frames handed to the transport of one link at a time: enough to keep it busy, few enough that a newer
    # version overtakes an older one within a few chunks.
    outbox_chunks: int = 8
    # A sender keeps at most this much credit of one receiver, however much it grants.
    credit_kept_most: int = 4096
    # Encodings that one link may ask us for at a time.
    wants_per_link_most: int = 4
    versions_in_flight_most: int = 2
    penalty_s: float = 60.0
    # A link that we dialled and nobody needs stays open for this long.
    linger_s: float = 10.0
    redial_first_s: float = 0.2
    redial_most_s: float = 10.0


@dataclass(slots=True)
class Source:
    """A link on which we asked for an encoding."""

    wanted_at_s: float
    last_chunk_s: float
    claimed: ChunkSet | None = None  # what it said it holds; None until it answers


@dataclass(slots=True)
class Serving:
    """An encoding that the other end of a link asked us for."""

    key: EncodingKey
    credit: int = 0
    cursor: int = 0  # into EncodingState.order
    list_sent: bool = False
    theirs: ChunkSet | None = None


@dataclass(slots=True)
class LinkState:
    link: LinkId
    peer_id: PeerId
    role: str
    dialled: bool
    needed_at_s: float
    granted: dict[EncodingKey, int] = field(default_factory=dict)  # credit that the other end has not used
    late: dict[EncodingKey, int] = field(default_factory=dict)  # credit of cancelled wants: may still arrive
    verifying: int = 0
    serving: dict[EncodingKey, Serving] = field(default_factory=dict)
    queued: int = 0  # chunks handed to the transport, not yet taken

    @property
    def unacknowledged(self) -> int:
        """Chunks that may be on the way to us or wait for verification."""
        return sum(self.granted.values()) + self.verifying


@dataclass(slots=True)
class EncodingState:
    key: EncodingKey
    phase: Phase
    have: ChunkSet
    order: list[int] = field(default_factory=list)  # verified chunks in the order in which they came
    resumable: bool = False
    announced_on: LinkId | None = None
    asked_since_s: float = 0.0
    patience_from_s: float = 0.0  # last progress, or the last time we did something about the lack of it
    sources: dict[LinkId, Source] = field(default_factory=dict)
    awaited: PeerId | None = None  # being dialled for this encoding
    refused_until_s: dict[PeerId, float] = field(default_factory=dict)
    passed_over: set[PeerId] = field(default_factory=set)  # stalled on this encoding while others delivered

    @property
    def in_flight(self) -> bool:
        return self.phase in IN_FLIGHT_PHASES

    @property
    def chunk_count(self) -> int:
        return self.have.size


@dataclass(slots=True)
class DialState:
    dialling: bool = False
    failures: int = 0
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """The newest failure of the store since a version was last stored."""

    key: EncodingKey
    chunk_count: int
    reason: str
    in_a_row: int
    retry_at_s: float | None  # None: whoever announced it on a link sends it again by itself

    def __str__(self) -> str:
        return f"cannot store version {self.key.version}: {self.reason}"


@dataclass(slots=True)
class Counters:
    """Since the process started."""

    chunk_bytes_from_origin: int = 0
    chunk_bytes_from_peers: int = 0
    chunk_bytes_from_learner: int = 0
    chunks_rejected: int = 0


@dataclass(slots=True)
class RelayState:
    settings: RelaySettings
    plan: PlanChanged = field(default_factory=lambda: PlanChanged(PlanId(0), (), (), ()))
    links: dict[LinkId, LinkState] = field(default_factory=dict)
    encodings: dict[EncodingKey, EncodingState] = field(default_factory=dict)
    dials: dict[PeerId, DialState] = field(default_factory=dict)
    penalised_until_s: dict[PeerId, float] = field(default_factory=dict)
    store_failure: StoreFailure | None = None
    counters: Counters = field(default_factory=Counters)
    actions: list[Action] = field(default_factory=list)

    def do(self, action: Action) -> None:
        """Queue an action for the shell."""
        self.actions.append(action)

    def newest_link(self, peer_id: PeerId) -> LinkState | None:
        """The youngest open link to a peer: an older one may be half dead."""
        mine = [link for link in self.links.values() if link.peer_id == peer_id]
        return max(mine, key=lambda link: link.link) if mine else None

    def in_flight(self) -> list[EncodingState]:
        """Encodings being received, newest first."""
        return [self.encodings[key] for key in sorted(self.encodings, reverse=True) if self.encodings[key].in_flight]

    def newest_version(self) -> Version:
        """The newest version known; -1 when there is none."""
        return max((key.version for key in self.encodings), default=Version(-1))

    def dial_state(self, peer_id: PeerId) -> DialState:
        return self.dials.setdefault(peer_id, DialState())

    def penalised(self, peer_id: PeerId, now: float) -> bool:
        return self.penalised_until_s.get(peer_id, 0.0) > now

    def candidates(self, now: float) -> list[Neighbour]:
        """Whom we may ask for chunks, best first."""
        neighbours: dict[PeerId, Neighbour] = {}
        for neighbour in (*self.plan.parents, *self.plan.fallbacks):
            if not self.penalised(neighbour.peer_id, now):
                neighbours.setdefault(neighbour.peer_id, neighbour)
        return list(neighbours.values())

    def is_parent(self, peer_id: PeerId) -> bool:
        return any(parent.peer_id == peer_id for parent in self.plan.parents)

    def validate(self) -> None:
        """Assert what must always hold; on in tests."""
        settings = self.settings
        for link in self.links.values():
            assert link.unacknowledged <= settings.credit_chunks, link
            assert all(count > 0 for count in link.granted.values()), link
            assert link.verifying >= 0, link
            assert 0 <= link.queued <= settings.outbox_chunks, link
            assert len(link.serving) <= settings.wants_per_link_most, link
        for encoding in self.encodings.values():
            assert encoding.have.count == len(encoding.order) == len(set(encoding.order)), encoding
            assert encoding.sources.keys() <= self.links.keys(), encoding
            assert not encoding.sources or encoding.in_flight or encoding.phase == "finishing", encoding
            assert encoding.phase not in ("finishing", "held") or encoding.have.complete, encoding
        assert len(self.in_flight()) <= settings.versions_in_flight_most
