"""What the relay's core asks its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from peer.links.neighbours import EncodingKey, Neighbour
from peer.relay.core.events import LinkId
from rollcast.wire.ids import ChunkIndex, PeerId, StripeId, Version


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link; answered by LinkUp or DialFailed."""

    neighbour: Neighbour


@dataclass(frozen=True, slots=True)
class CloseLink:
    """The core has forgotten the link already; no LinkDown is needed."""

    link: LinkId
    reason: str


@dataclass(frozen=True, slots=True)
class SendWant:
    """``announcement``: ask for that of the version and for nothing else."""

    link: LinkId
    key: EncodingKey
    chunk_list: bool
    announcement: bool = False


@dataclass(frozen=True, slots=True)
class SendRequest:
    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendHave:
    link: LinkId
    key: EncodingKey
    chunk_count: int  # 0 while we do not know
    bitmap: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class SendCredit:
    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendCancel:
    link: LinkId
    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class SendChunkList:
    """The shell reads the list from the store."""

    link: LinkId
    key: EncodingKey


@dataclass(frozen=True, slots=True)
class SendAnnouncement:
    """The shell has the signed announcement."""

    link: LinkId
    version: Version


@dataclass(frozen=True, slots=True)
class SendChunk:
    """The shell finds the chunk in memory or in the store; answered by ChunkSent, also when it is gone."""

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    stripe: StripeId


@dataclass(frozen=True, slots=True)
class BeginStore:
    """Open the encoding in the store with the chunk list received last; answered by StoreReady or StoreFailed."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class Verify:
    """Check the arriving chunk against the list; answered at once by ChunkVerified or ChunkCorrupt.

    The shell keeps what is verified in memory until it is stored, and stores it; a failure comes as StoreFailed.
    """

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    stripe: StripeId


@dataclass(frozen=True, slots=True)
class FinishVersion:
    """Every chunk is verified: once stored, check the state's hash and make it durable; answered by VersionFinished
    or StoreFailed."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class AnnounceHeld:
    """The encoding is complete, durable and verified: tell this process and the coordinator."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class ListChunks:
    """Somebody asks for the keyframe of a state that was made here: cut it up now; answered by VersionRestored."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class AbandonVersion:
    """Nothing more will be received of this encoding; with ``again``, until it is tried again some time later; with
    ``in_vain`` because nobody has it, so that something else has to take its place."""

    key: EncodingKey
    reason: str
    again: bool = False
    in_vain: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nothing can be stored here: end the process."""

    version: Version
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Accuse:
    """Their bug, not ours: tell the coordinator what this peer sent."""

    peer_id: PeerId
    version: Version
    index: ChunkIndex
    reason: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell whoever runs this process what to put right."""

    code: str
    what: str
    fix: str


Action = (
    Dial
    | CloseLink
    | SendWant
    | SendRequest
    | SendHave
    | SendCredit
    | SendCancel
    | SendChunkList
    | SendAnnouncement
    | SendChunk
    | BeginStore
    | Verify
    | FinishVersion
    | AnnounceHeld
    | ListChunks
    | AbandonVersion
    | GiveUp
    | Accuse
    | Warn
)
