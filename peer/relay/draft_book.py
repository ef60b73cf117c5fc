"""Decide what an origin does with a version that the learner sends before it has signed it: the draft. Pure.

While the learner still writes and hashes a keyframe, it sends the finished chunks, in order from chunk 0. The origin
keeps them in a file of their own. They count for nothing until the signed announcement and the chunk list have come:
then those that match the list are taken over by the store, and the others are requested. No peer hears of a draft.

There is one draft at a time. A chunk 0 begins a new one, since the learner may have restarted and trained other bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.limits import CHUNK_COUNT_MAX, STATE_BYTES_MAX
from rollcast.wire.versions.records import KEYFRAME_ID

KEPT_S = 600.0
"""Seconds for which a draft is kept after its last chunk: the learner makes its copy durable before it announces."""


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """Begin the file of a draft."""

    version: Version
    chunk_size_bytes: int


@dataclass(frozen=True, slots=True)
class AppendChunk:
    """Write the chunk that came to the end of the draft's file."""


@dataclass(frozen=True, slots=True)
class DiscardDraft:
    """Delete the file of the draft."""

    version: Version
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseChunk:
    """Close the link on which the chunk came: the learner must not have sent it."""

    reason: str


Command = OpenDraft | AppendChunk | DiscardDraft | RefuseChunk


@dataclass(slots=True)
class _Draft:
    version: Version
    chunk_size_bytes: int  # of all chunks but the last
    came_at_s: float
    chunks: int = 0
    size_bytes: int = 0

    @property
    def ended(self) -> bool:
        """Whether the last chunk was a short one, after which none can follow."""
        return self.size_bytes < self.chunks * self.chunk_size_bytes


class DraftBook:
    """Keeps how far the draft has come; each fact returns commands.

    Args:
        bytes_most: bound on the bytes of a draft.
    """

    def __init__(self, bytes_most: int = STATE_BYTES_MAX) -> None:
        self._bytes_most = bytes_most
        self._draft: _Draft | None = None
        self._newest_announced = -1

    def chunk_came(
        self, version: Version, encoding_id: EncodingId, index: int, size_bytes: int, now: float
    ) -> list[Command]:
        """Take a chunk that came on the learner's link, of a version that is not announced."""
        if version <= self._newest_announced:
            return []
        if encoding_id != KEYFRAME_ID:
            return [RefuseChunk(f"version {version} is not announced, and the chunk is of no keyframe")]
        commands: list[Command] = []
        if index == 0:
            commands += self._discard("the learner began another one")
            self._draft = _Draft(version, size_bytes, now)
            commands.append(OpenDraft(version, size_bytes))
        draft = self._draft
        if draft is None or draft.version != version:
            return commands  # the rest of a draft that was discarded
        if index != draft.chunks or draft.ended or size_bytes > draft.chunk_size_bytes:
            why = f"chunk {index} of {size_bytes} bytes does not continue the draft of version {version}"
            return [*commands, *self._discard(why), RefuseChunk(why)]
        if draft.chunks >= CHUNK_COUNT_MAX or draft.size_bytes + size_bytes > self._bytes_most:
            return [*commands, *self._discard("it is longer than a state may be")]
        draft.chunks += 1
        draft.size_bytes += size_bytes
        draft.came_at_s = now
        return [*commands, AppendChunk()]

    def announced(self, version: Version) -> list[Command]:
        """Note that the signed announcement of a version is here; the draft of an older one is of no use."""
        self._newest_announced = max(self._newest_announced, version)
        if self._draft is not None and self._draft.version < version:
            return self._discard(f"version {version} is announced")
        return []

    def take(self, version: Version) -> bool:
        """Return whether there is a draft of this version, which ends here: the store takes it over."""
        if self._draft is None or self._draft.version != version:
            return False
        self._draft = None
        return True

    def tick(self, now: float) -> list[Command]:
        """Discard a draft that was neither continued nor announced for ``KEPT_S``."""
        if self._draft is not None and now - self._draft.came_at_s > KEPT_S:
            return self._discard("it was not announced in time")
        return []

    def _discard(self, reason: str) -> list[Command]:
        draft, self._draft = self._draft, None
        return [] if draft is None else [DiscardDraft(draft.version, reason)]
