"""Hold a version that is signed and durable on the learner's disk, ready to be pushed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learner.publishing.encodings import Encoded
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.records import VerifiedVersion


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version that is signed and durable on the learner's disk.

    Args:
        encodings: every encoding that its manifests name.
        base: the version that its adapters complete, for an origin that lacks it; None for a whole state.
    """

    signed: VerifiedVersion
    encodings: Mapping[EncodingId, Encoded]
    base: Prepared | None = None

    @property
    def size_bytes_max(self) -> int:
        """Return the bytes of the states that an origin may lack."""
        return self.signed.record.state_size_bytes + (0 if self.base is None else self.base.size_bytes_max)

    def chunk_lists(self) -> dict[tuple[Version, EncodingId], bytes]:
        """Return the hashes of the chunks of every encoding, 32 bytes a chunk, the base's included."""
        version = self.signed.version
        lists = {(version, encoding_id): one.chunk_hashes for encoding_id, one in self.encodings.items()}
        return lists if self.base is None else lists | self.base.chunk_lists()

    def chunk(self, version: Version, encoding_id: EncodingId, index: int) -> memoryview:
        """Return the bytes of one chunk, of this version or its base.

        Raises:
            MalformedMessage: the encoding has no chunk of this index.
        """
        if version != self.signed.version:
            assert self.base is not None
            return self.base.chunk(version, encoding_id, index)
        manifest = self.signed.manifest(encoding_id)
        assert manifest is not None
        return memoryview(self.encodings[encoding_id].data)[slice(*manifest.chunk_range(index))]
