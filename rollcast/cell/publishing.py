"""Pass versions on to a cell: push them to its origin, then announce them to its coordinator, as the learner does.

Records and manifests stay as the head's learner signed them. A manifest of an encoding that is not held here is left
out of the announcement, so that nobody in the cell asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

import structlog

from learner.coordinator.client import CoordinatorClient
from learner.publishing.origin_link import LinkBroken, OriginLink
from learner.publishing.push import Push
from rollcast.runtime.errors import Unreachable
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding

PUSH_S_MIN = 600.0  # seconds for the acknowledgement of a version, in addition to its size at the slowest rate
BYTES_PER_SECOND_MIN = 1 << 20
DELAY_MOST_S = 3.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version with the encodings of it, and of its base, that the store holds completely."""

    announcement: pb.VersionAnnouncement
    verified: VerifiedVersion
    encodings: dict[tuple[Version, EncodingId], StoredEncoding]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its largest encodings together."""
        return sum(one.manifest.size_bytes for one in self.encodings.values())

    def chunk_lists(self) -> dict[tuple[Version, EncodingId], bytes]:
        """Return the hashes of each encoding's chunks. Blocks while those of a computed state are hashed."""
        for one in self.encodings.values():
            one.list_chunks()
        return {key: one.chunk_list() for key, one in self.encodings.items()}

    def chunk(self, version: Version, encoding_id: EncodingId, index: ChunkIndex) -> bytes:
        """Return a chunk's bytes, verified."""
        return self.encodings[version, encoding_id].read(index)


def held_version(store: ChunkStore, version: Version) -> HeldVersion | None:
    """Return a version as the store holds it; None if a newer one has replaced its state, or that of its base."""
    state = store.get(version)
    if state is None:
        return None
    verified = state.verified
    encodings = {(version, state.encoding_id): state, **_deltas(store, verified)}
    announcement = _only(verified.announcement, {encoding_id for _, encoding_id in encodings})
    if verified.base is not None:
        base = store.get(verified.base.version)
        if base is None:
            return None
        encodings[verified.base.version, base.encoding_id] = base
        announcement.base.CopyFrom(_only(verified.announcement.base, {base.encoding_id}))
    return HeldVersion(announcement, verified, encodings)


def _deltas(store: ChunkStore, verified: VerifiedVersion) -> dict[tuple[Version, EncodingId], StoredEncoding]:
    found = ((one.encoding_id, store.get(verified.version, one.encoding_id)) for one in verified.deltas)
    return {(verified.version, encoding_id): one for encoding_id, one in found if one is not None and one.finished}


def _only(announcement: pb.VersionAnnouncement, encodings: Iterable[EncodingId]) -> pb.VersionAnnouncement:
    """Return an announcement with the manifests of these encodings only."""
    kept, wanted = pb.VersionAnnouncement(), set(encodings)
    kept.CopyFrom(announcement)
    del kept.manifests[:]
    for signed in announcement.manifests:
        if EncodingId(pb.Manifest.FromString(signed.payload).encoding_id) in wanted:
            kept.manifests.append(signed)
    return kept


class CellPublisher:
    """Publishes the versions of the head's run in the cell, the newest first and one at a time.

    Args:
        client: of the cell's coordinator, in the learner's place.
        credentials: returns the certificate for links in the cell.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        credentials: Callable[[], Awaitable[TlsCredentials]],
        random: Random,
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._random = random
        self._link: OriginLink | None = None
        self._published: Version | None = None

    async def publish(self, store: ChunkStore, version: Version) -> None:
        """Push a version to the cell's origin until it is durable there, then announce it.

        A version is left out if the cell has it or a newer one, or if a newer one has replaced it here.

        Raises:
            WaitTimedOut: no acknowledgement came before the deadline.
            RollcastError: the cell's coordinator refused a call, or another process answers in the origin's place.
        """
        info = await self._client.open()
        if info.has_published and info.newest_published_version >= version:
            return
        with ExitStack() as kept:
            held = held_version(store, version)
            if held is None:
                log.info("version not published in the cell: a newer one has replaced it", version=version)
                return
            for encoding in held.encodings.values():
                kept.enter_context(encoding.reader())
            lists = await asyncio.to_thread(held.chunk_lists)
            seconds = PUSH_S_MIN + held.size_bytes / BYTES_PER_SECOND_MIN
            fix = "check that the cell's origin runs, and read its log"
            async with deadline(seconds, f"the cell's origin to hold version {version} durably", fix=fix):
                await self._push(held, lists)
        await self._open_epoch(info, held.verified)
        await self._client.announce(held.announcement)
        log.info("version published in the cell", version=version, encodings=len(lists))

    async def close(self) -> None:
        """Close the link to the cell's origin."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _push(self, held: HeldVersion, lists: dict[tuple[Version, EncodingId], bytes]) -> None:
        for delay_s in backoff_delays_s(self._random, most_s=DELAY_MOST_S):
            try:
                if self._link is None:
                    self._link = await self._connect()
                await self._link.push(Push(held.announcement, held.verified.version, lists), held.chunk)
                return
            except (LinkBroken, Unreachable) as error:
                log.warning("link to the cell's origin broken", version=held.verified.version, reason=str(error))
                await self.close()
            await asyncio.sleep(delay_s)

    async def _connect(self) -> OriginLink:
        info = await self._client.open()
        if not info.origin_address:
            raise LinkBroken("the cell's origin has not joined")
        return await OriginLink.connect(
            info.origin_address,
            PeerId(info.origin_peer_id),
            run_id=info.run_id,
            credentials=await self._credentials(),
        )

    async def _open_epoch(self, info: pb.RunInfo, verified: VerifiedVersion) -> None:
        """Open the epoch of a version in the cell, if the head's learner has begun a new one.

        Which versions both epochs have in common is not known here, so that rollouts of all earlier ones are dropped.
        """
        epoch = info.epoch
        while epoch < verified.record.epoch:
            epoch = (await self._client.open_epoch(verified.version, None)).epoch
