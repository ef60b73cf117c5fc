"""What the learner says on a link to the origin while it pushes one version. Pure: messages in, messages out.

The learner announces; the origin answers with what it wants and what it already has, grants credit, and says
VersionHeld when its copy is durable. One credit pays for one chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rollcast.wire.chunks import HASH_BYTES, bitmap_has
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import Manifest


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this control message."""

    message: pb.LinkMessage


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send this chunk of the keyframe."""

    index: ChunkIndex


@dataclass(frozen=True, slots=True)
class Held:
    """The origin's copy of the version is complete, verified and durable."""


@dataclass(frozen=True, slots=True)
class PushFailed:
    """The origin gave up on this link; a new one may succeed."""

    reason: str


Output = SendMessage | SendChunk | Held | PushFailed


class Push:
    """The state of one push over one link.

    Args:
        announcement: the signed version.
        manifest: of its keyframe.
        chunk_hashes: 32 bytes a chunk of the keyframe.
    """

    def __init__(self, announcement: pb.VersionAnnouncement, manifest: Manifest, chunk_hashes: bytes) -> None:
        self.version = manifest.version
        self.encoding_id = manifest.encoding_id
        self._announcement = announcement
        self._chunk_hashes = chunk_hashes
        self._missing = deque(range(manifest.chunk_count))
        self._wanted = False
        self._credit = 0

    def start(self) -> list[Output]:
        """What to send first."""
        return [SendMessage(pb.LinkMessage(announcement=self._announcement))]

    def receive(self, message: pb.LinkMessage) -> list[Output]:
        """React to one message of the origin; messages about other versions are ignored."""
        match message.WhichOneof("body"):
            case "held" if message.held.version == self.version:
                return [Held()]
            case "want" if self._is_ours(message.want):
                self._wanted = True
                hashes = pb.ChunkList(version=self.version, encoding_id=self.encoding_id, hashes=self._chunk_hashes)
                return [SendMessage(pb.LinkMessage(chunk_list=hashes)), *self._spend()]
            case "have" if self._is_ours(message.have):
                self._forget_what_it_has(message.have)
                return []
            case "credit" if self._is_ours(message.credit):
                self._credit += message.credit.chunks
                return self._spend()
            case "cancel" if self._is_ours(message.cancel):
                return [PushFailed(f"the origin cancelled: {message.cancel.reason[:200]}")]
            case "error":
                return [PushFailed(f"the origin reports {message.error.code[:40]}: {message.error.what[:200]}")]
        return []

    def _is_ours(self, body: pb.Want | pb.Have | pb.Credit | pb.Cancel) -> bool:
        return body.version == self.version and body.encoding_id == self.encoding_id

    def _forget_what_it_has(self, have: pb.Have) -> None:
        if have.complete:
            self._missing.clear()
            return
        if have.bitmap and have.chunk_count == len(self._chunk_hashes) // HASH_BYTES:
            self._missing = deque(index for index in self._missing if not bitmap_has(have.bitmap, index))

    def _spend(self) -> list[Output]:
        if not self._wanted:
            return []
        chunks: list[Output] = []
        while self._credit > 0 and self._missing:
            self._credit -= 1
            chunks.append(SendChunk(ChunkIndex(self._missing.popleft())))
        return chunks
