"""Hold the state of the relay's core: links, encodings, the plan, penalties, and the settings that bound them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from peer.links.neighbours import EncodingKey, Neighbour
from peer.relay.core.state.actions import Action
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import LinkId, PlanChanged, Stripe
from peer.relay.core.state.reach import Reach
from peer.relay.core.state.window import ServiceWindow, UplinkPace
from rollcast.wire.ids import PeerId, PlanId, StripeId, Version
from rollcast.wire.token_bucket import TokenBucket

Phase = Literal["waiting", "opening", "receiving", "finishing", "held"]
IN_FLIGHT_PHASES: tuple[Phase, ...] = ("waiting", "opening", "receiving")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of the operator, and bounds that follow from the protocol.

    Args:
        role: "peer" or "origin".
        stall_timeout_s: without a new chunk for this long, further holders are asked.
        store_retry_s: a version that could not be stored is received again after this long.
        store_give_up_s: the process ends once no version could be stored for this long.
        pull_from: share of a keyframe at which requests for its chunks begin; a different one in each process.
    """

    role: str
    stall_timeout_s: float = 3.0
    store_retry_s: float = 15.0
    store_give_up_s: float = 3600.0
    pull_from: float = 0.0
    # Chunks given to the transport of one link that have not left: more would only delay newer ones.
    outbox_chunks: int = 1
    # Copies that wait for one child; a child that does not keep up requests the rest later.
    pushes_most: int = 32
    # A copy behind this many others for the same child counts as sent: a slow child must not hold back the rest.
    pushes_counted_least: int = 4
    # If few children are behind, copies of this many chunks count instead, which limits the work given to this relay.
    # Otherwise a child whose flow gets less than its share of the uplink gets ever less: what it leaves unused is given
    # to this relay as further work, and the other children's flows fill the uplink with it.
    chunks_counted: int = 2
    # Requested chunks that may wait on one link.
    pulls_most: int = 1024
    # A link is stuck while it does not take a chunk and the others take this many each.
    stuck_after_chunks: int = 2
    # The origin assigns the next chunk only while fewer copies than this wait in it.
    issue_ahead_chunks: int = 4
    # Chunks that a relay is given, or a source is asked for, before its speed is known.
    window_first: float = 4.0
    window_first_of_holder: float = 16.0
    # Bytes that the learner is asked for at least: it sends to one origin alone, so a wait is no queue behind others'
    # chunks but a processor that is busy, and would shrink the window.
    window_least_of_learner_bytes: int = 4 << 20
    # A chunk is late if a newer one came this long ago, or half as long again as is usual on this peer.
    late_s_least: float = 0.4
    late_s_least_at_end: float = 0.05
    have_interval_s: float = 0.1
    have_interval_s_at_end: float = 0.02
    # An encoding that no source holds is abandoned for a newer version if no chunk of it came for this long.
    in_vain_s: float = 10.0
    # How long the chunk list may take to come by itself.
    list_patience_s: float = 0.5
    sources_most: int = 16
    wants_per_link_most: int = 8
    encodings_in_flight_most: int = 8
    # Chunks on one link that were not needed, beyond the number of those that were.
    useless_chunks_most: int = 4096
    penalty_s: float = 60.0
    # A link that this process dialled and no longer needs stays open for this long.
    linger_s: float = 10.0
    redial_first_s: float = 0.2
    redial_most_s: float = 10.0
    # Links to further holders, beyond the plan, that are dialled at most.
    further_links_most: int = 4
    # Without the coordinator the plan is not repaired: with fewer links than this, further holders are dialled.
    alone_links_least: int = 4


@dataclass(slots=True)
class Owned:
    """A chunk that a root was given to pass on, and has not reported yet."""

    key: EncodingKey
    index: int
    given_at_s: float
    alone: bool = True  # no other root was given the chunk


@dataclass(slots=True)
class Push:
    """A copy that waits for one child."""

    index: int
    stripe: StripeId
    upstream: LinkId | None  # gets a report once the copy has left; None: no link does, or the copy is counted already
    relayed: bool = False  # the origin gave it to a root, which passes it on; relays send all their copies in turn


@dataclass(slots=True)
class Account:
    """Chunks that one upstream link gave this relay to pass on, with the number of copies of each."""

    copies: deque[tuple[EncodingKey, int, int]] = field(default_factory=deque)
    left: int = 0  # copies that have left and are not reported


@dataclass(slots=True)
class LinkState:
    """One open link: what waits to be sent on it, and what is known of its other end."""

    link: LinkId
    peer_id: PeerId
    role: str
    dialled: bool
    opened_at_s: float
    needed_at_s: float
    lan: bool = False
    rtt_s: float = 0.0  # 0 if it is unknown
    pushes: dict[EncodingKey, deque[Push]] = field(default_factory=dict)
    pulls: dict[EncodingKey, deque[int]] = field(default_factory=dict)
    theirs: dict[EncodingKey, ChunkSet] = field(default_factory=dict)  # what the other end surely has
    wants: dict[EncodingKey, int] = field(default_factory=dict)  # to be reported -> chunks in the last report
    reported_at_s: float = 0.0  # when the last report was sent
    got: dict[EncodingKey, list[int]] = field(default_factory=dict)  # to be reported: it need not send these chunks
    lists_sent: set[EncodingKey] = field(default_factory=set)
    lists_due: set[EncodingKey] = field(default_factory=set)  # asked for before we had them
    in_transport: deque[Push | None] = field(default_factory=deque)  # chunks that have not left; None: an answer
    given_at_s: float = 0.0  # when the transport was given the newest of them
    given_after: int = 0  # chunks that had left on all links by then
    given_bytes: int = 0  # its chunk size
    owned: deque[Owned] = field(default_factory=deque)
    account: Account = field(default_factory=Account)
    useful: int = 0
    useless: int = 0
    known_versions: set[Version] = field(default_factory=set)  # announced here, and known to the other end as well
    mentioned: EncodingKey | None = None  # the newest encoding that it mentioned and whose announcement is not here
    mention_requests: int = 0  # times that this announcement was requested
    mention_requested_at_s: float = 0.0
    answered: dict[Version, int] = field(default_factory=dict)  # announcements that it requested -> times

    def copies(self) -> list[Push]:
        """Return the copies for this child that have not left."""
        waiting = [push for pushes in self.pushes.values() for push in pushes]
        return [push for push in self.in_transport if push is not None] + waiting

    @property
    def copies_count(self) -> int:
        """Return how many copies for this child have not left."""
        leaving = sum(push is not None for push in self.in_transport) if self.in_transport else 0
        return leaving + sum(map(len, self.pushes.values()))

    def wants_no_more(self, key: EncodingKey) -> bool:
        """Stop reporting an encoding on this link; return whether it was reported until now."""
        self.lists_due.discard(key)
        return self.wants.pop(key, None) is not None


@dataclass(slots=True)
class Source:
    """A link whose other end was asked what it holds of an encoding."""

    window: ServiceWindow
    claimed: int | None = None  # the chunks it claims to hold, as by ChunkSet.as_int; None until it answers
    claims_all: bool = False
    requested: dict[int, float] = field(default_factory=dict)  # chunk -> when it was requested, the longest ago first
    answered_at_s: float = 0.0  # when it last sent a requested chunk, or was asked while no request was open
    busy_until_s: float = 0.0  # it declined requests until then
    declined: int = 0  # times in a row that it declined requests
    unanswered: int = 0  # times in a row that its requests were given up


# Chunks that must have come, or been given out, before their pace is meaningful.
_PACE_CHUNKS_LEAST = 16
# The last share of an encoding: reports of what is held are sent more often, so that the last chunks are found quickly.
_END_SHARE = 0.08


@dataclass(slots=True)
class EncodingState:
    """One encoding that is received or held; see ``encodings`` for its phases."""

    key: EncodingKey
    phase: Phase
    have: ChunkSet
    chunk_size_bytes: int
    announced: bool = False
    listed: bool = False
    holder: LinkId | None = None
    pushed: bool = True  # the origin broadcasts it
    is_base: bool = False  # adapters need it
    announced_at_s: float = 0.0
    pushed_at_s: float = 0.0  # when the last pushed chunk came, or the announcement
    came_at_s: float = 0.0  # when the last new chunk came, or the announcement
    searched_at_s: float = 0.0  # when the last new chunk came, or further sources were last asked because none came
    insisted_at_s: float = 0.0  # when a source that had declined was last asked again
    all_claimed_at_s: float = 0.0  # when a source first claimed to hold all of it; 0: none has
    pulling: bool = False
    sources: dict[LinkId, Source] = field(default_factory=dict)
    awaited: PeerId | None = None  # the holder that is being dialled for this encoding
    refused_until_s: dict[PeerId, float] = field(default_factory=dict)
    answers: dict[PeerId, TokenBucket] = field(default_factory=dict)  # bounds how much each peer may request
    # Lateness: the highest chunk that came by push, when it rose, and how far behind it other chunks usually are.
    frontier: int = -1
    frontier_at: deque[tuple[float, int]] = field(default_factory=deque)
    lag_s: float = 0.0
    reach: Reach = field(default_factory=Reach)
    chunk_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.chunk_count = self.have.size

    @property
    def in_flight(self) -> bool:
        return self.phase in IN_FLIGHT_PHASES

    @property
    def joining(self) -> bool:
        """Return whether no chunk of it was pushed here: it is requested from those who hold it already."""
        return (not self.pushed or self.frontier < 0) and self.holder is None

    def pace_s(self, now: float) -> float:
        """Return the seconds that a chunk took to come on average, since the announcement."""
        return (now - self.announced_at_s) / max(1, self.have.count)

    def known_pace_s(self, now: float) -> float:
        """Return the same; 0 before so many chunks came that it is known."""
        return self.pace_s(now) if self.have.count >= _PACE_CHUNKS_LEAST else 0.0

    @property
    def ending(self) -> bool:
        """Return whether little of it is missing, so that it is time to learn which peers hold the rest."""
        return self.have.count >= self.have.size * (1.0 - _END_SHARE)


@dataclass(frozen=True, slots=True)
class Again:
    """A chunk whose root failed to pass it on."""

    index: int
    failed: LinkId


@dataclass(slots=True)
class Broadcast:
    """An encoding that this origin broadcasts."""

    key: EncodingKey
    started_at_s: float
    next: int = 0
    again: deque[Again] = field(default_factory=deque)  # before all others
    given: int = 0
    given_at_s: float = 0.0  # when the newest chunk was given out, or the start

    def left(self, chunk_count: int) -> int:
        """Return how many chunks are still to be given out."""
        return chunk_count - self.next + len(self.again)

    def remaining_s(self, chunk_count: int, now: float) -> float:
        """Return the seconds that the rest takes at the pace so far; infinity before the pace is known."""
        if self.given < _PACE_CHUNKS_LEAST:
            return float("inf")
        return self.left(chunk_count) * (now - self.started_at_s) / self.given


@dataclass(slots=True)
class DialState:
    """Dials to one peer: whether one is in progress, and when the next may be made."""

    dialling: bool = False
    dialled_at_s: float = 0.0
    failures: int = 0
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version whose verified announcement is here."""

    key: EncodingKey  # the encoding that the origin broadcasts
    at_s: float


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """The newest failure of the store since a version was last stored.

    Args:
        since_s: when the first of these failures came, or an older version was stored after it.
    """

    key: EncodingKey
    reason: str
    since_s: float

    def __str__(self) -> str:
        return f"cannot store version {self.key.version}: {self.reason}"


@dataclass(slots=True)
class Counters:
    """Counts since the process started."""

    chunk_bytes_from_origin: int = 0
    chunk_bytes_from_peers: int = 0
    chunk_bytes_from_learner: int = 0
    chunk_bytes_from_mirrors: int = 0
    chunks_rejected: int = 0
    chunks_duplicate: int = 0
    chunks_hedged: int = 0
    chunks_given_again: int = 0
    chunks_skipped: int = 0
    chunks_direct: int = 0
    reparentings: int = 0


# After this long a failed relay is sent chunks again: it may have been busy with something else for a moment.
_TRIED_AGAIN_S = 5.0


@dataclass(slots=True)
class RelayState:
    """Everything that the core keeps, and the actions of the event that it is handling."""

    settings: RelaySettings
    now_s: float = 0.0  # of the event that is being handled
    chunks_left: int = 0  # chunks that left this process, on all links
    uplink: UplinkPace = field(default_factory=UplinkPace)
    turns: deque[LinkId] = field(default_factory=deque)  # links with chunks that wait for their turn
    turns_ahead: deque[LinkId] = field(default_factory=deque)  # those whose next chunk is passed on from there
    sending: dict[LinkId, LinkState] = field(default_factory=dict)  # links with a chunk that has not left
    plan: PlanChanged = field(default_factory=lambda: PlanChanged(PlanId(0)))
    stripes: dict[StripeId, Stripe] = field(default_factory=dict)  # the plan's, to look up
    failed_until_s: dict[PeerId, float] = field(default_factory=dict)  # relays whose heirs are sent their chunks
    neighbours: dict[PeerId, Neighbour] = field(default_factory=dict)
    links: dict[LinkId, LinkState] = field(default_factory=dict)
    link_to: dict[PeerId, LinkState] = field(default_factory=dict)  # the newest link: an older one may be half dead
    offline: bool = False  # the coordinator is unreachable
    further: tuple[Neighbour, ...] = ()  # holders beyond the plan
    known_versions: dict[Version, KnownVersion] = field(default_factory=dict)  # the newest versions
    encodings: dict[EncodingKey, EncodingState] = field(default_factory=dict)
    made: set[EncodingKey] = field(default_factory=set)  # keyframes of states made here, not cut up into chunks yet
    asked_at_s: dict[EncodingKey, float] = field(default_factory=dict)  # when a peer last asked for an encoding
    broadcasts: dict[EncodingKey, Broadcast] = field(default_factory=dict)
    windows: dict[tuple[PeerId, int], ServiceWindow] = field(default_factory=dict)  # of roots, by chunk size
    dials: dict[PeerId, DialState] = field(default_factory=dict)
    penalised_until_s: dict[PeerId, float] = field(default_factory=dict)
    store_failure: StoreFailure | None = None
    waiting_for_retry: dict[EncodingKey, EncodingState] = field(default_factory=dict)
    retry_at_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    undialled_since_s: float | None = None  # since when neighbours are to dial this process and none has
    dials_judged: bool = False  # one of them did, or the warning that none does was given
    actions: list[Action] = field(default_factory=list)

    def do(self, action: Action) -> None:
        """Queue an action for the shell."""
        self.actions.append(action)

    def in_flight(self) -> list[EncodingState]:
        """Return the encodings that are being received, newest first."""
        return [self.encodings[key] for key in sorted(self.encodings, reverse=True) if self.encodings[key].in_flight]

    def newest_version(self) -> Version:
        """Return the newest version of which an encoding is known; -1 if there is none."""
        return max((key.version for key in self.encodings), default=Version(-1))

    def dial_state(self, peer_id: PeerId) -> DialState:
        """Return the dials to a peer, new ones if there were none."""
        return self.dials.setdefault(peer_id, DialState())

    def helps(self, link: LinkState) -> bool:
        """Return whether the other end may be asked: it is in the plan, or the coordinator is unreachable."""
        return link.peer_id in self.neighbours or (self.offline and link.role in ("peer", "origin"))

    def penalised(self, peer_id: PeerId, now: float) -> bool:
        """Return whether a peer sent wrong bytes lately and is neither dialled nor asked."""
        return self.penalised_until_s.get(peer_id, 0.0) > now

    def window_of(self, peer_id: PeerId, chunk_size_bytes: int) -> ServiceWindow:
        """Return the window of a root for chunks of this size; it is kept from one version to the next."""
        known = self.windows.get((peer_id, chunk_size_bytes))
        if known is None:
            known = self.windows[peer_id, chunk_size_bytes] = ServiceWindow(self.settings.window_first)
        return known

    def is_stuck(self, link: LinkState) -> bool:
        """Return whether a chunk waits for the other end and not for the uplink: others left on each link since."""
        behind = self.chunks_left - link.given_after
        return bool(link.in_transport) and behind > self.settings.stuck_after_chunks * len(self.links)

    def theirs(self, link: LinkState, encoding: EncodingState) -> ChunkSet:
        """Return the chunks that the other end of a link surely has; changes to the set are kept."""
        known = link.theirs.get(encoding.key)
        if known is None or known.size != encoding.chunk_count:
            known = link.theirs[encoding.key] = ChunkSet(encoding.chunk_count)
        return known

    # ---------------------------------------------------------------- heirs of relays that fail

    def receivers(self, stripe_id: StripeId, sender: LinkState | None) -> list[LinkState]:
        """Return the links to which a stripe's chunk goes from here, those to inner nodes first.

        A relay that has relays below it reports the chunks that it has passed on to its parent. A parent that misses
        such reports for far longer than usual sends further chunks to the relay's heirs, which the plan names. An heir
        that receives chunks from its guardian sends them to the other relays below its parent as well.

        Args:
            sender: the link on which the chunk came; None at the origin.
        """
        stripe = self.stripes.get(stripe_id)
        if stripe is None:
            return []
        adopted = stripe.adopted if sender is not None and sender.peer_id == stripe.guardian else ()
        if not adopted and not self.failed_until_s:  # as nearly always: this function runs for each chunk
            linked = [self.link_to.get(peer_id) for peer_id in stripe.children]
            if None not in linked:
                return [link for link in linked if link is not None and link is not sender]
        links = [self.link_to[peer_id] for peer_id in adopted if peer_id in self.link_to]
        for peer_id in stripe.children:
            child = self.link_to.get(peer_id)
            heirs = [] if child is not None and not self.has_failed(peer_id) else self._heirs(stripe, peer_id)
            if heirs:
                links += heirs
            elif child is not None:
                links.append(child)
        return [link for link in links if link is not sender]

    def passes_on(self, peer_id: PeerId, stripe_id: StripeId) -> bool:
        """Return whether a stripe's chunks are passed on by the peer that they go to from here."""
        stripe = self.stripes.get(stripe_id)
        return stripe is not None and peer_id not in stripe.children[stripe.relays :]

    def _heirs(self, stripe: Stripe, failed: PeerId) -> list[LinkState]:
        """Return the links to the heirs of a child; if all of them failed too, to all unless the child is linked."""
        linked = [heir for child, heir in stripe.heirs if child == failed and heir in self.link_to]
        working = [heir for heir in linked if not self.has_failed(heir)]
        chosen = working or ([] if failed in self.link_to else linked)
        return [self.link_to[heir] for heir in chosen]

    def reports(self, peer_id: PeerId, stripe_id: StripeId) -> bool:
        """Return whether a child has relays below it in a stripe, so that it reports what it has passed on."""
        stripe = self.stripes.get(stripe_id)
        return stripe is not None and any(child == peer_id for child, _ in stripe.heirs)

    def is_only_heir(self, peer_id: PeerId) -> bool:
        """Return whether a peer is sent chunks only in the place of a relay that failed."""
        return all(peer_id not in stripe.children for stripe in self.stripes.values())

    def has_failed(self, peer_id: PeerId) -> bool:
        """Return whether a relay kept chunks for far too long lately."""
        return self.failed_until_s.get(peer_id, 0.0) > self.now_s

    def note_failure(self, peer_id: PeerId) -> None:
        """Note that a relay keeps a chunk for far longer than its reports usually take."""
        self.failed_until_s[peer_id] = self.now_s + _TRIED_AGAIN_S

    def note_report(self, peer_id: PeerId) -> None:
        """Note that a relay reported a chunk in time."""
        self.failed_until_s.pop(peer_id, None)

    def discard_failures(self) -> None:
        """A new plan came: its relays are those that the coordinator believes to work."""
        self.failed_until_s.clear()
        if self.settings.role != "origin":
            for link in self.links.values():
                link.owned.clear()  # a child may not be an inner node any more, and report nothing

    def validate(self) -> None:
        """Assert the invariants of the state; tests call this after each event."""
        settings = self.settings
        assert self.sending == {link.link: link for link in self.links.values() if link.in_transport}
        for link in self.links.values():
            assert len(link.in_transport) <= settings.outbox_chunks, link
            assert all(len(pushes) <= settings.pushes_most for pushes in link.pushes.values()), link
            assert sum(map(len, link.pulls.values())) <= settings.pulls_most, link
            assert len(link.wants) <= settings.wants_per_link_most, link
            assert link.lists_due <= link.wants.keys(), link
            assert link.mentioned is None or link.mentioned.version not in self.known_versions, link
        assert {link.link for link in self.link_to.values()} <= self.links.keys()
        assert {link.peer_id for link in self.links.values()} == self.link_to.keys()
        assert self.asked_at_s.keys() <= self.encodings.keys() | self.made
        for encoding in self.encodings.values():
            assert encoding.sources.keys() <= self.links.keys(), encoding
            assert not encoding.sources or encoding.phase != "held", encoding
            assert encoding.phase not in ("finishing", "held") or encoding.have.complete, encoding
        assert len(self.in_flight()) <= settings.encodings_in_flight_most
