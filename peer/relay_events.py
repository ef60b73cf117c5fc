"""What the relay's core is told: by the coordinator, by links, by the store, by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, PlanId, Version

LinkId = NewType("LinkId", int)  # rises with every link of this process


@dataclass(frozen=True, slots=True, order=True)
class EncodingKey:
    """One encoding of one version: the unit that is received and served."""

    version: Version
    encoding_id: EncodingId


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process in this peer's part of the relay plan."""

    peer_id: PeerId
    role: str
    address: str  # host:port; empty where it cannot be dialled
    we_dial: bool


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The coordinator's newest relay plan for this peer."""

    plan_id: PlanId
    parents: tuple[Neighbour, ...]
    children: tuple[Neighbour, ...]
    fallbacks: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True)
class VersionKnown:
    """A verified announcement names this encoding.

    Args:
        announced_on: the link on which the announcement came, itself a source; None when the coordinator sent it.
        resumable: part of it may be on disk, so nothing is asked for before the store has looked.
    """

    key: EncodingKey
    chunk_count: int
    announced_on: LinkId | None = None
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class VersionRestored:
    """The store holds this encoding, complete, from an earlier life of the process."""

    key: EncodingKey
    chunk_count: int


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
    dialled: bool  # by us


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link ended. ``jitter`` in [0, 1) is drawn by the shell, for the delay before the next dial."""

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
    link: LinkId
    key: EncodingKey


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """The other end stops asking for, or stops sending, this encoding."""

    link: LinkId
    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class HaveReceived:
    link: LinkId
    key: EncodingKey
    chunk_count: int
    bitmap: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class ChunkListReceived:
    """``valid``: the list hashes to the signed manifest."""

    link: LinkId
    key: EncodingKey
    valid: bool


@dataclass(frozen=True, slots=True)
class CreditReceived:
    link: LinkId
    key: EncodingKey
    chunks: int


@dataclass(frozen=True, slots=True)
class HeldReceived:
    """The other end holds the version, complete and durable."""

    link: LinkId
    version: Version


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """A chunk frame arrived; its bytes are not verified yet and wait in the shell."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """A VerifyAndStore succeeded: the bytes hash to the list and are in the store."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkCorrupt:
    """A VerifyAndStore failed: the bytes do not hash to the list and were thrown away."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex


@dataclass(frozen=True, slots=True)
class ChunkSent:
    """A SendChunk was handed to the transport, which has room again."""

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
    link: LinkId | None = None  # where the chunk came from, if it answers VerifyAndStore


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; a few a second."""


Event = (
    PlanChanged
    | VersionKnown
    | VersionRestored
    | VersionsRemoved
    | LinkUp
    | LinkDown
    | DialFailed
    | WantReceived
    | CancelReceived
    | HaveReceived
    | ChunkListReceived
    | CreditReceived
    | HeldReceived
    | ChunkArrived
    | ChunkStored
    | ChunkCorrupt
    | ChunkSent
    | StoreReady
    | VersionFinished
    | StoreFailed
    | Tick
)
