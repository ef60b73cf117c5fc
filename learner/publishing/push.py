"""Push one version to the origin: the learner's side of the protocol. Pure: messages in, messages out.

The learner announces the version. The origin answers with the encodings that it needs, requests missing chunks as fast
as it can store them, and sends VersionHeld once its copy is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollcast.wire.ids import ChunkIndex, EncodingId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import HASH_BYTES


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this control message."""

    message: pb.LinkMessage


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send this chunk, after the chunks that were requested earlier."""

    version: Version
    encoding_id: EncodingId
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
    """The push of one version over one link.

    Args:
        announcement: the signed version.
        version: its number.
        chunk_lists: the hashes of the chunks of each encoding, 32 bytes per chunk: of the version and of its base.
    """

    def __init__(
        self,
        announcement: pb.VersionAnnouncement,
        version: Version,
        chunk_lists: Mapping[tuple[Version, EncodingId], bytes],
    ) -> None:
        self.version = version
        self._announcement = announcement
        self._chunk_lists = dict(chunk_lists)

    def start(self) -> list[Output]:
        """Return the first messages."""
        return [SendMessage(pb.LinkMessage(announcement=self._announcement))]

    def receive(self, message: pb.LinkMessage) -> list[Output]:
        """React to one message of the origin; messages about other versions or encodings are ignored."""
        match message.WhichOneof("body"):
            case "held" if message.held.version == self.version:
                return [Held()]
            case "want" if self._is_ours(message.want):
                return self._tell(message.want)
            case "request" if self._is_ours(message.request):
                return self._serve(message.request)
            case "cancel" if self._is_ours(message.cancel):
                return [PushFailed(f"the origin cancelled: {message.cancel.reason[:200]}")]
            case "error":
                return [PushFailed(f"the origin reports {message.error.code[:40]}: {message.error.what[:200]}")]
        return []

    def _is_ours(self, body: pb.Want | pb.Request | pb.Cancel) -> bool:
        return (body.version, body.encoding_id) in self._chunk_lists

    def _tell(self, want: pb.Want) -> list[Output]:
        version, encoding_id = Version(want.version), EncodingId(want.encoding_id)
        hashes = self._chunk_lists[version, encoding_id]
        listed = pb.ChunkList(version=version, encoding_id=encoding_id, hashes=hashes)
        have = pb.Have(version=version, encoding_id=encoding_id, chunk_count=len(hashes) // HASH_BYTES, complete=True)
        answers = [pb.LinkMessage(chunk_list=listed)] if want.chunk_list else []
        return [SendMessage(answer) for answer in [*answers, pb.LinkMessage(have=have)]]

    def _serve(self, request: pb.Request) -> list[Output]:
        version, encoding_id = Version(request.version), EncodingId(request.encoding_id)
        count = len(self._chunk_lists[version, encoding_id]) // HASH_BYTES
        if max(request.indices) >= count:
            return [PushFailed(f"the origin requests chunk {max(request.indices)} of {count}")]
        return [SendChunk(version, encoding_id, ChunkIndex(index)) for index in request.indices]
