"""Define the events that the relay's core handles: from the coordinator, links, the store and the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from peer.links.neighbours import EncodingKey, Neighbour
from rollcast.wire.ids import ChunkIndex, PeerId, PlanId, StripeId

LinkId = NewType("LinkId", int)  # higher for each new link of this process


@dataclass(frozen=True, slots=True)
class Stripe:
    """The children to which this process passes on the chunks of one stripe.

    Args:
        bytes_per_second: what the plan expects the stripe to carry; 0: not known.
        heirs: (child, child of that child): the second is sent the stripe's chunks if the first fails.
        adopted: further children, for chunks that come from ``guardian``.
        guardian: the parent of this process's parent, if this process is its parent's heir; None otherwise.
        relays: how many of the children pass the chunks on; they come first.
    """

    stripe: StripeId
    children: tuple[PeerId, ...]
    bytes_per_second: float = 0.0
    heirs: tuple[tuple[PeerId, PeerId], ...] = ()
    adopted: tuple[PeerId, ...] = ()
    guardian: PeerId | None = None
    relays: int = 0


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The coordinator's newest relay plan for this peer.

    Args:
        neighbours: links to keep open and warm.
        stripes: the stripes that this process passes on.
        list_children: peers that are sent announcements and chunk lists, ahead of the chunks.
        parents: peers that send chunks of some stripe to this process.
        fallbacks: further holders, dialled when the neighbours do not help.
        direct_copies: an origin may send a chunk to all neighbours itself when its uplink would idle.
    """

    plan_id: PlanId
    neighbours: tuple[Neighbour, ...] = ()
    stripes: tuple[Stripe, ...] = ()
    list_children: tuple[PeerId, ...] = ()
    parents: tuple[PeerId, ...] = ()
    fallbacks: tuple[Neighbour, ...] = ()
    direct_copies: bool = False


@dataclass(frozen=True, slots=True)
class OfflineChanged:
    """The coordinator has been unreachable for a while (``offline``), or a session is open again."""

    offline: bool


@dataclass(frozen=True, slots=True)
class HoldersKnown:
    """Members that may hold versions and are not in the plan, the likeliest first; replaces the last such event."""

    holders: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True)
class AnnouncementReceived:
    """A verified announcement came.

    Args:
        key: the encoding of the version that the origin sends to every peer.
        link: the link on which it came; None: it came from the coordinator or from the store.
    """

    key: EncodingKey
    link: LinkId | None = None


@dataclass(frozen=True, slots=True)
class EncodingKnown:
    """This process is to receive an encoding that a verified announcement names.

    The event is repeated when more is known of the encoding; what was true before stays true.

    Args:
        announced: the learner announced the version to the run; before that, chunks are taken but none is requested.
        listed: the shell holds the chunk list that hashes to the manifest.
        holder: the link of a process that holds all of it: the learner's.
        pushed: the origin broadcasts it; other encodings come only on request.
        is_base: adapters need the version's state, so it is not given up for a newer version.
    """

    key: EncodingKey
    chunk_count: int
    chunk_size_bytes: int = 1 << 16
    announced: bool = True
    listed: bool = False
    holder: LinkId | None = None
    pushed: bool = True
    is_base: bool = False


@dataclass(frozen=True, slots=True)
class BroadcastStarted:
    """This process, the origin, is to broadcast an encoding that it holds."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class EncodingUnwanted:
    """Another encoding is cheaper, or the version is superseded: stop receiving this one."""

    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class VersionRestored:
    """The store holds this encoding, complete: received before a restart, or computed from a delta."""

    key: EncodingKey
    chunk_count: int
    chunk_size_bytes: int = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyframeMade:
    """The version's state was computed here from a delta; VersionRestored follows later, or soon after ListChunks."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class VersionsRemoved:
    """Retention removed these from the store."""

    keys: tuple[EncodingKey, ...]


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link is open and its other end is authenticated."""

    link: LinkId
    peer_id: PeerId
    role: str
    dialled: bool  # by this process
    rtt_s: float = 0.0  # the round trip to the other end; 0 if it is unknown


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link ended. ``jitter`` in [0, 1) is a random number for the delay before the next dial."""

    link: LinkId
    reason: str
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A Dial action did not lead to a link."""

    peer_id: PeerId
    reason: str
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class WantReceived:
    """The other end asks what is held of an encoding, now and as it grows.

    Args:
        chunk_list: whether it requests the chunk list as well.
        announcement: whether it requests only the announcement of the version.
    """

    link: LinkId
    key: EncodingKey
    chunk_list: bool = False
    announcement: bool = False


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """The other end requests chunks."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """The other end stops asking for, or stops sending, this encoding."""

    link: LinkId
    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class HaveReceived:
    """The other end reports what it holds of an encoding."""

    link: LinkId
    key: EncodingKey
    chunk_count: int
    bitmap: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class ChunkListReceived:
    """A chunk list came; ``valid`` if it hashes to the signed manifest."""

    link: LinkId
    key: EncodingKey
    valid: bool


@dataclass(frozen=True, slots=True)
class CreditReceived:
    """The relay at the other end reports chunks given to it that have left its uplink."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GotReceived:
    """The other end reports chunks that it got another way: copies of them need not be sent."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeclineReceived:
    """The other end will not send these requested chunks, because more waits for its uplink than leaves in a moment."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """A chunk frame arrived; its bytes are not verified yet and wait in the shell."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    stripe: StripeId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkVerified:
    """A Verify succeeded: the bytes hash to the list, can be read, and are on their way to the disk."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    stripe: StripeId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkCorrupt:
    """A Verify failed: the bytes, whose hash is ``chunk_hash``, are not those of the list and were discarded."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    chunk_hash: bytes = b""


@dataclass(frozen=True, slots=True)
class ChunkSent:
    """A SendChunk left this process and its socket has room again."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class StoreReady:
    """A BeginStore succeeded; ``bitmap`` names the chunks found on disk and verified."""

    key: EncodingKey
    bitmap: bytes


@dataclass(frozen=True, slots=True)
class VersionFinished:
    """A FinishVersion succeeded: durable, and the state's hash matches the record."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store cannot take or finish this encoding (a full disk, a state that does not hash to its record)."""

    key: EncodingKey
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. The shell sends 20 of these a second while chunks are on their way, and 4 otherwise."""


Event = (
    PlanChanged
    | OfflineChanged
    | HoldersKnown
    | AnnouncementReceived
    | EncodingKnown
    | BroadcastStarted
    | EncodingUnwanted
    | VersionRestored
    | KeyframeMade
    | VersionsRemoved
    | LinkUp
    | LinkDown
    | DialFailed
    | WantReceived
    | RequestReceived
    | CancelReceived
    | HaveReceived
    | ChunkListReceived
    | CreditReceived
    | GotReceived
    | DeclineReceived
    | ChunkArrived
    | ChunkVerified
    | ChunkCorrupt
    | ChunkSent
    | StoreReady
    | VersionFinished
    | StoreFailed
    | Tick
)
