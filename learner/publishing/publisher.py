"""Publish a version: hash, sign, write durably, push to the origin, and announce once the origin holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import Protocol

import structlog

from learner.config import PublishConfig
from learner.kill_points import kill_point
from learner.publishing.encodings import Encoded, cut_up, encode
from learner.publishing.growth import Unsigned, Wait, unheeded
from learner.publishing.mapped_files import hash_of
from learner.publishing.origin_link import LinkBroken, OriginLink, OriginRefused
from learner.publishing.prepared import Prepared
from learner.publishing.push import Push
from learner.publishing.versions import BASE_VERSION, Freezing, FrozenSnapshot, RetainedVersions
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import CheckpointError, RollcastError, Unreachable, WaitTimedOut
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import EncodingId, Epoch, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike, chunk_size_for
from rollcast.wire.versions.records import (
    KEYFRAME_ID,
    PREVIOUS_ID,
    SQUASHED_ID,
    BaseRef,
    VerifiedVersion,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    parse_announcement,
    sign_version,
    verify_announcement,
)
from rollcast.wire.versions.state_hash import LEAF_BYTES

_AHEAD_BYTES = 16 << 20  # of a state that is written in the memory of the one before, ahead of what is encoded
_KEYFRAME_IN_LEAVES_BYTES = 256 << 20  # from here on a keyframe in chunks of LEAF_BYTES has enough of them
_REFUSED_S_MOST = 3600.0  # an origin that cannot store ends after as long by default (store.give_up_s)
PUSH_BYTES_PER_SECOND_MIN = 1 << 20  # the slowest origin that can keep up; larger versions may take longer to push


_log = structlog.get_logger()


class Origin(Protocol):
    """The place to which versions are pushed."""

    async def push(self, prepared: Prepared) -> None:
        """Return once the version is durable at the origin.

        Raises:
            RollcastError: the push failed.
        """

    async def send_ahead(self, unsigned: Unsigned) -> None:
        """Send the chunks of a keyframe that is not signed yet as they are written, until cancelled.

        What does not arrive is pushed later.

        Raises:
            Exception: the error of the writer.
        """


class Publisher:
    """Publish snapshots as versions, in order.

    After a resume, repeated steps are compared with the versions that were published: the epoch continues only with
    the same state hash. Where it differs, the publisher has *diverged* and signs nothing more until the next epoch,
    since one version number must never stand for two states.

    Args:
        identity: key that signs versions.
        run: facts about the run from the opening of the session: run id, epoch, newest published version.
        model_json: architecture, part of every record.
        config: chunk size, and which deltas are published.
        retained: the learner's own copies of versions.
        origin: receives every version before it is announced.
        announce: announces a version to the coordinator.
        stop_on_mismatch: raise an error instead of diverging.
        adapters: version 0 is the frozen base, and every later version holds adapters over it.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        run: pb.RunInfo,
        model_json: str,
        config: PublishConfig,
        retained: RetainedVersions,
        origin: Origin,
        announce: Callable[[pb.VersionAnnouncement], Awaitable[bool]],
        stop_on_mismatch: bool = False,
        adapters: bool = False,
    ) -> None:
        self._identity = identity
        self._run = run
        self._model_json = model_json
        self._config = config
        self._retained = retained
        self._origin = origin
        self._announce = announce
        self._stop_on_mismatch = stop_on_mismatch
        self._newest_announced = run.newest_published_version if run.has_published else -1
        self._newest_of_run = self._verified(run.newest_announcement) if run.has_published else None
        self._adapters = adapters
        self._base: Prepared | None = None
        self._epoch = Epoch(run.epoch)
        self._epoch_starts_at = Version(0)  # deltas start from versions of this epoch only
        self._common_version: Version | None = None
        self._diverged = False
        self._stages_s: dict[str, float] = {}

    @property
    def stages_s(self) -> dict[str, float]:
        """Return the seconds that each stage of the newest publication took; stages may take place at the same time."""
        return dict(self._stages_s)

    @contextmanager
    def _stage(self, name: str, *, since_s: float | None = None) -> Iterator[None]:
        """Measure a stage, from now on or from an earlier moment."""
        started_s = time.monotonic() if since_s is None else since_s
        yield
        self._stages_s[name] = round(time.monotonic() - started_s, 3)

    @property
    def diverged(self) -> bool:
        """Whether the state differs from that published at the same step; then nothing is signed in this epoch."""
        return self._diverged

    @property
    def common_version(self) -> Version | None:
        """Return the newest published version whose state was reached in this epoch and this life; None: none yet."""
        return self._common_version

    @property
    def newest_announced(self) -> int:
        """Return the newest version that the run has; -1 if there is none."""
        return self._newest_announced

    @property
    def newest_known(self) -> int:
        """Return the newest version that the run or this disk has; -1 if there is none."""
        return max([self._newest_announced, *self._retained.versions()[-1:]])

    def knows(self, version: Version) -> bool:
        """Return whether this version was signed before."""
        return self._known_hash(version) is not None

    def enter_epoch(self, epoch: Epoch, first: Version, *, common: Version | None = None) -> None:
        """Sign versions from ``first`` on in this epoch; ``common`` is a version whose state was reached already."""
        self._epoch, self._epoch_starts_at = epoch, first
        self._common_version, self._diverged = common, False

    async def publish(
        self, version: Version, snapshot: Snapshot | Freezing, *, on_kept: Callable[[], None] = lambda: None
    ) -> float:
        """Publish one version, or only compare it if the run has it already. Return the seconds that this took.

        Args:
            on_kept: called once the learner's own copy is durable.

        Raises:
            CheckpointError: repeated training gave other bytes than were published, and stop_on_mismatch is set.
            RollcastError: disk, origin or coordinator failed.
        """
        started_s = time.monotonic()
        begun, unsigned = await asyncio.to_thread(self._begin, version, snapshot)
        async with self._sent_ahead(unsigned):
            prepared = await asyncio.to_thread(self.prepare, version, begun)
        on_kept()
        if prepared is not None:
            await self._hand_over(prepared, pushed_since_s=started_s if unsigned is not None else None)
        return time.monotonic() - started_s

    def _begin(self, version: Version, frozen: Snapshot | Freezing) -> tuple[Snapshot, Unsigned | None]:
        """Begin to write a snapshot; also return its keyframe if that is what the origin will ask for.

        A version of which a delta is made is sent as a delta, and one that was signed before is not sent ahead.
        """
        ahead = self._is_new(version, self._known_hash(version)) and PREVIOUS_ID not in self._bases(version)
        snapshot = frozen.begin() if isinstance(frozen, Freezing) else frozen
        if not ahead or not isinstance(snapshot, FrozenSnapshot):
            return snapshot, None
        chunk_bytes = self._keyframe_chunk_bytes(len(snapshot.state_bytes), previous=None)
        return snapshot, Unsigned(version, snapshot.state_bytes, chunk_bytes, snapshot.growth)

    @asynccontextmanager
    async def _sent_ahead(self, unsigned: Unsigned | None) -> AsyncIterator[None]:
        """Send a keyframe's chunks to the origin while the body runs."""
        if unsigned is None:
            yield
            return
        sending = asyncio.create_task(self._origin.send_ahead(unsigned), name=f"send version {unsigned.version} ahead")
        try:
            yield
        finally:
            sending.cancel()
            (ended,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended

    async def publish_kept(self, until: int) -> None:
        """Publish the versions up to ``until`` that an earlier life of this learner kept but did not announce.

        Raises:
            RollcastError: see publish.
        """
        for version in [kept for kept in self._retained.versions() if self._newest_announced < kept <= until]:
            await self._hand_over(await asyncio.to_thread(self._prepared_before, version))

    async def _hand_over(self, prepared: Prepared, *, pushed_since_s: float | None = None) -> None:
        version = prepared.signed.version
        if version <= self._newest_announced:
            return
        started_s = time.monotonic()
        with self._stage("push", since_s=pushed_since_s):
            await self._origin.push(prepared)
        kill_point("pushed")
        await self._announce(prepared.signed.announcement)
        kill_point("announced")
        self._newest_announced = version
        seconds = round(time.monotonic() - started_s, 3)
        sizes = {manifest.encoding_id: manifest.size_bytes for manifest in prepared.signed.manifests}
        stages_s = self.stages_s
        _log.info(
            "version published", version=version, bytes_by_encoding=sizes, seconds=seconds, seconds_by_stage=stages_s
        )

    def prepare(self, version: Version, frozen: Snapshot | Freezing) -> Prepared | None:
        """Hash, encode and sign a version and keep it durably, without sending it. Blocks on hashing and fsync.

        A version that was signed in an earlier life is used as it is, because peers may know its manifests. Returns
        None if there is nothing to send: the run has another state under this number, or an unknown one.

        A snapshot that is still to be written is encoded meanwhile. Its file is moved to the retained versions or
        deleted.

        Raises:
            CheckpointError: see publish.
        """
        self._stages_s = {}
        snapshot = frozen.begin() if isinstance(frozen, Freezing) else frozen
        try:
            prepared = self._prepare(version, snapshot)
        finally:
            self._retained.discard(snapshot)
        if isinstance(snapshot, FrozenSnapshot):
            self._stages_s["freeze"] = round(snapshot.growth.seconds, 3)
        return prepared

    def _prepare(self, version: Version, snapshot: Snapshot) -> Prepared | None:
        known = self._known_hash(version)
        if self._is_new(version, known):
            self._common_version, prepared = version, self._encode_and_keep(version, snapshot)
            return prepared
        with self._stage("hash"):
            digest = hash_of(snapshot.state_bytes, _wait_for(snapshot))
        if known not in (None, digest) and not self._diverged:
            self._diverge(version)
        if self._diverged or known is None:
            self._retained.stand_in(version, snapshot)
            return None
        self._common_version = version
        return self._again(version, snapshot)

    def _again(self, version: Version, snapshot: Snapshot) -> Prepared:
        """Return a version that was signed before with the same state."""
        signed = self._signed_before(version)
        assert signed is not None
        if self._retained.signed(version) is None:  # its bytes had been removed, or this disk lost it
            self._retained.retain(signed, snapshot, {})
        else:
            self._retained.remember(signed.record, snapshot)
        return self._prepared(signed, snapshot.state_bytes)

    def _state_for(self, encoding_id: EncodingId, base: Version) -> tuple[VersionRecord, BytesLike]:
        """Return the state that a delta starts from."""
        retained = self._retained
        return retained.moving_base(base) if encoding_id == SQUASHED_ID else retained.base(base)

    def _diverge(self, version: Version) -> None:
        if self._stop_on_mismatch:
            raise _other_bytes(version)
        self._diverged = True
        _log.warning(
            "repeated training gave other weights than were published; the run continues in a new epoch",
            version=version,
            newest_common_version=self._common_version,
        )

    def _encode_and_keep(self, version: Version, snapshot: Snapshot) -> Prepared:
        bases = self._bases(version)
        with self._stage("encode"):
            digest, encodings = self._encode(snapshot, bases)
        kill_point("state_hashed")
        base = self._base_of(version)
        signed = self._sign(version, snapshot, digest, encodings, bases, None if base is None else base.signed)
        kill_point("version_signed")
        deltas = {encoding_id: one.data for encoding_id, one in encodings.items() if encoding_id != KEYFRAME_ID}
        with self._stage("keep"):
            self._retained.retain(signed, snapshot, deltas)
        return Prepared(signed, encodings, base)

    def _encode(
        self, snapshot: Snapshot, bases: Mapping[EncodingId, Version]
    ) -> tuple[bytes, dict[EncodingId, Encoded]]:
        """Encode a snapshot. Where memory is kept for one state only, the version before gives its own back meanwhile,
        and the snapshot is written no faster than that."""
        previous = bases.get(PREVIOUS_ID)
        encoding = partial(
            encode,
            snapshot,
            bases,
            chunk_size_bytes=self._config.chunk_size_bytes,
            keyframe_chunk_bytes=self._keyframe_chunk_bytes(len(snapshot.state_bytes), previous),
            wait=_wait_for(snapshot),
        )
        spent = None if previous is None else self._retained.spend(previous)
        if spent is None or not isinstance(snapshot, FrozenSnapshot):
            return encoding(state_of=self._state_for)
        record, old = spent

        def state_of(encoding_id: EncodingId, base: Version) -> tuple[VersionRecord, BytesLike]:
            return (record, old.view) if encoding_id == PREVIOUS_ID else self._state_for(encoding_id, base)

        def passed(until_bytes: int) -> None:
            old.passed(until_bytes)
            snapshot.growth.passed(until_bytes)

        snapshot.growth.hold_back(_AHEAD_BYTES)
        try:
            return encoding(state_of=state_of, passed=passed)
        finally:
            snapshot.growth.hold_back(None)

    def _keyframe_chunk_bytes(self, size_bytes: int, previous: Version | None) -> int:
        """Return the chunk size of a keyframe.

        Where versions are sent as deltas, a keyframe is for peers that fell behind. If its chunks are the leaves of the
        state hash, the learner and every peer that lists its chunks have a pass over the state less.
        """
        if not self._config.chunk_size_bytes and previous is not None and size_bytes >= _KEYFRAME_IN_LEAVES_BYTES:
            before = self._retained.signed(previous)
            if before is not None and before.manifest(PREVIOUS_ID) is not None:
                return LEAF_BYTES
        return self._config.chunk_size_bytes or chunk_size_for(size_bytes)

    def _base_of(self, version: Version) -> Prepared | None:
        """Return version 0 if this one holds adapters over it.

        Raises:
            CheckpointError: no copy of version 0 is kept.
        """
        if not self._adapters or version == BASE_VERSION:
            return None
        if self._base is None:
            _, state = self._retained.base(BASE_VERSION)
            signed = self._retained.signed(BASE_VERSION)
            assert signed is not None
            self._base = Prepared(signed, {KEYFRAME_ID: cut_up(state, signed.keyframe.chunk_size_bytes)})
        return self._base

    def _prepared_before(self, version: Version) -> Prepared:
        signed = self._retained.signed(version)
        assert signed is not None
        return self._prepared(signed, self._retained.state(version)[1])

    def _prepared(self, signed: VerifiedVersion, state: BytesLike) -> Prepared:
        """Return a kept version with the bytes that its manifests name; one that was announced needs none."""
        if signed.version <= self._newest_announced:
            return Prepared(signed, {})
        encodings = {KEYFRAME_ID: cut_up(state, signed.keyframe.chunk_size_bytes)}
        for manifest in signed.deltas:
            delta = self._retained.delta(signed.version, manifest)
            encodings[manifest.encoding_id] = cut_up(delta, manifest.chunk_size_bytes)
        return Prepared(signed, encodings, self._base_of(signed.version))

    def _bases(self, version: Version) -> dict[EncodingId, Version]:
        """Return where each delta starts: the previous version, and the one squash_versions publications earlier."""
        first = max(self._epoch_starts_at, BASE_VERSION + 1) if self._adapters else self._epoch_starts_at
        older = [kept for kept in self._retained.versions() if first <= kept < version]
        if not older or not self._config.deltas:
            return {}
        bases = {PREVIOUS_ID: older[-1]}
        if 1 < self._config.squash_versions <= len(older):
            bases[SQUASHED_ID] = older[-self._config.squash_versions]
        return bases

    def _sign(
        self,
        version: Version,
        snapshot: Snapshot,
        digest: bytes,
        encodings: Mapping[EncodingId, Encoded],
        bases: Mapping[EncodingId, Version],
        base: VerifiedVersion | None,
    ) -> VerifiedVersion:
        record = VersionRecord(
            run_id=RunId(self._run.run_id),
            epoch=self._epoch,
            version=version,
            parent_hash=self._parent_hash(version),
            state_hash=digest,
            state_size_bytes=len(snapshot.state_bytes),
            tensors=snapshot.tensors,
            model_json=self._model_json,
            base=None if base is None else BaseRef(base.version, base.record.state_hash),
        )
        keyframe = encodings[KEYFRAME_ID]
        manifests = [keyframe_manifest(record, keyframe.chunk_hashes, keyframe.chunk_size_bytes)]
        for encoding_id, starts_from in bases.items():
            if (delta := encodings.get(encoding_id)) is not None:
                manifests.append(
                    delta_manifest(
                        record,
                        encoding_id,
                        starts_from,
                        size_bytes=len(delta.data),
                        chunk_hashes=delta.chunk_hashes,
                        chunk_size_bytes=delta.chunk_size_bytes,
                    )
                )
        base_announcement = None if base is None else base.announcement
        return parse_announcement(sign_version(record, manifests, self._identity, base=base_announcement))

    def _parent_hash(self, version: Version) -> bytes:
        older = [kept for kept in self._retained.versions() if kept < version]
        if older and (parent := self._retained.signed(older[-1])) is not None:
            return parent.record_hash
        newest = self._newest_of_run
        return newest.record_hash if newest is not None and newest.version < version else b""

    def _is_new(self, version: Version, known: bytes | None) -> bool:
        """Whether a version is to be signed: it was not before, and the states of this life are the run's.

        Args:
            known: its state hash, see ``_known_hash``.
        """
        return known is None and version > self._newest_announced and not self._diverged

    def _known_hash(self, version: Version) -> bytes | None:
        """Return the state hash of a version that was signed before; None if it was not, or the hash is unknown."""
        signed = self._signed_before(version)
        return None if signed is None else signed.record.state_hash

    def _signed_before(self, version: Version) -> VerifiedVersion | None:
        """Return a version that was signed in an earlier life, if this disk has its record, or else if the run told it.

        The run tells its newest version, and that one's base.
        """
        newest = self._newest_of_run
        told = () if newest is None else (newest, newest.base)
        return self._retained.record(version) or next((one for one in told if one and one.version == version), None)

    def _verified(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        public_key = self._identity.public_key
        return verify_announcement(announcement, run_id=RunId(self._run.run_id), learner_public_key=public_key)


class OriginPusher:
    """Push versions over a link that stays open between them, and is reopened with backoff when it breaks.

    Args:
        find: returns the run's facts with the origin's present address and peer id; the origin may have moved.
        credentials: returns the learner's credentials; called whenever a link is opened.
        timeout_s: seconds for the durable acknowledgement of a version, in addition to its size divided by
            PUSH_BYTES_PER_SECOND_MIN.
        random: source of the retries' jitter.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[pb.RunInfo]],
        credentials: Callable[[], Awaitable[TlsCredentials]],
        *,
        timeout_s: float,
        random: Random,
    ) -> None:
        self._find = find
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._random = random
        self._link: OriginLink | None = None

    async def push(self, prepared: Prepared) -> None:
        """Push a version, retrying until the origin acknowledges it as durable.

        An origin that answers why it cannot take the version, such as a full disk, is waited for up to an hour.

        Raises:
            WaitTimedOut: no acknowledgement came before the deadline; its cause is why the last attempt failed.
            WrongKey: another peer answers at the origin's address.
        """
        version = prepared.signed.version
        seconds = self._timeout_s + prepared.size_bytes_max / PUSH_BYTES_PER_SECOND_MIN
        waiting_for, broken = f"the origin to hold version {version} durably", ""
        loop = asyncio.get_running_loop()
        refused_until_s = loop.time() + _REFUSED_S_MOST
        try:
            async with deadline(seconds, waiting_for, fix="check that the origin runs, and read its log") as within:
                for delay_s in backoff_delays_s(self._random, most_s=3.0):
                    try:
                        await self._push_once(prepared)
                        return
                    except LinkBroken as error:
                        if str(error) != broken:
                            _log.warning("link to the origin broken", version=version, reason=str(error))
                        broken = str(error)
                        if isinstance(error, OriginRefused) and loop.time() < refused_until_s:
                            within.restart()
                        await self.close()
                    await asyncio.sleep(delay_s)
        except WaitTimedOut as error:
            error.cause = broken
            raise

    async def send_ahead(self, unsigned: Unsigned) -> None:
        """Send the chunks of a keyframe before it is signed, until cancelled; what fails is left to the push."""
        try:
            if self._link is None:
                self._link = await self._connect()
            await self._link.send_ahead(unsigned)
        except (LinkBroken, RollcastError) as error:
            _log.info("version not sent before it is signed", version=unsigned.version, reason=str(error))
            await self.close()

    async def close(self) -> None:
        """Close the link, if one is open."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _push_once(self, prepared: Prepared) -> None:
        if self._link is None:
            self._link = await self._connect()
        push = Push(prepared.signed.announcement, prepared.signed.version, prepared.chunk_lists())
        await self._link.push(push, prepared.chunk)

    async def _connect(self) -> OriginLink:
        info = await self._find()
        try:
            credentials = await self._credentials()
        except Unreachable as error:
            raise LinkBroken(f"the learner's certificate could not be renewed: {error.what}") from None
        return await OriginLink.connect(
            info.origin_address, PeerId(info.origin_peer_id), run_id=info.run_id, credentials=credentials
        )


def _wait_for(snapshot: Snapshot) -> Wait:
    """Return what waits until bytes of a snapshot are written."""
    return snapshot.growth.wait if isinstance(snapshot, FrozenSnapshot) else unheeded


def _other_bytes(version: Version) -> CheckpointError:
    return CheckpointError(
        f"training resumed from the checkpoint gave other weights for version {version} than were published",
        cause="hardware, number of cores or software differ from before the restart",
        fix='resume on the machine and release that the run was trained with, or set resume.on_mismatch = "epoch"',
    )
