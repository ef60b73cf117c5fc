"""Define the actions that the relay's core asks its shell to carry out, in order."""

from __future__ import annotations

from dataclasses import dataclass

from peer.links.neighbours import EncodingKey, Neighbour
from peer.relay.core.state.events import LinkId
from rollcast.wire.ids import ChunkIndex, PeerId, StripeId, Version


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link; answered by LinkUp or DialFailed."""

    neighbour: Neighbour


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close a link that the core has removed already; no LinkDown is needed."""

    link: LinkId
    reason: str


@dataclass(frozen=True, slots=True)
class SendWant:
    """Ask what the other end holds of an encoding, now and as it grows.

    Args:
        chunk_list: request the chunk list as well.
        announcement: request the announcement of the version and nothing else.
    """

    link: LinkId
    key: EncodingKey
    chunk_list: bool
    announcement: bool = False


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Request chunks of an encoding."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendHave:
    """Report what is held of an encoding."""

    link: LinkId
    key: EncodingKey
    chunk_count: int  # 0 while it is not known
    bitmap: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class SendCredit:
    """Report chunks whose copies have left this relay's uplink to the link that gave it the chunks."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendGot:
    """Report chunks that came another way to a link from which they were expected, so that it need not send them."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendDecline:
    """Decline to send requested chunks, because more waits for this uplink than leaves in a moment."""

    link: LinkId
    key: EncodingKey
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Stop requesting, or stop serving, an encoding."""

    link: LinkId
    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class SendChunkList:
    """Send the chunk list of an encoding, which the shell reads from the store."""

    link: LinkId
    key: EncodingKey


@dataclass(frozen=True, slots=True)
class SendAnnouncement:
    """Send the signed announcement of a version, which the shell holds."""

    link: LinkId
    version: Version


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send a chunk from memory or from the store; answered by ChunkSent, also if the chunk is gone."""

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

    The shell keeps a verified chunk in memory until it is stored; a failure to store it comes as StoreFailed.
    """

    link: LinkId
    key: EncodingKey
    index: ChunkIndex
    stripe: StripeId


@dataclass(frozen=True, slots=True)
class FinishVersion:
    """Make an encoding durable whose chunks are all verified; answered by VersionFinished or StoreFailed.

    The shell checks the hash of the state once all chunks are stored.
    """

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class AnnounceHeld:
    """Announce to this process and the coordinator that an encoding is complete, durable and verified."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class ListChunks:
    """Cut the keyframe of a state that was computed here into chunks, because a peer asks for it; answered by
    VersionRestored."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class AbandonVersion:
    """Receive nothing more of an encoding.

    Args:
        again: the core receives it again later.
        in_vain: no source has it, so another encoding has to take its place.
    """

    key: EncodingKey
    reason: str
    again: bool = False
    in_vain: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the process, because nothing can be stored here."""

    version: Version
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Accuse:
    """Report a peer that sent wrong bytes to the coordinator, with its receipt if it gives one, and close the link.

    ``chunk_hash``: BLAKE3 of what came as a chunk; empty if it was no chunk.
    """

    link: LinkId
    peer_id: PeerId
    key: EncodingKey
    index: ChunkIndex
    reason: str
    chunk_hash: bytes = b""


@dataclass(frozen=True, slots=True)
class Warn:
    """Show a warning, and its fix, to the owner of this process."""

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
    | SendGot
    | SendDecline
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
