"""Keep versions on disk: they are received chunk by chunk, and visible as complete only once they are durable.

    folder/{version}/announcement          the signed announcement
    folder/{version}/{encoding}.list       chunk hashes
    folder/{version}/{encoding}.part       preallocated, partly filled
    folder/{version}/{encoding}.data       complete
    folder/{version}/0.loading             a second name of the state while an engine loads it
    folder/{version}/0.new                 a state that is being made or copied; discarded after a restart
    folder/draft                           a keyframe that the learner has not signed yet; discarded after a restart

A version's **state** is held once its keyframe, encoding 0, is on disk, whether it was received or made from an older
state and a delta. Every **encoding** on disk can be served to others; a keyframe that was made needs ``list_chunks``
first.

    delta = store.begin(verified, manifest, chunk_list)
    store.prepare(delta)                         # may wait; reserves the disk space
    ... delta.write(...), store.advance(...)     # when idle
    delta.finish()
    keyframe = store.materialise(delta)          # the state is verified
    keyframe.finish()                            # and durable
    keyframe.list_chunks()                       # and can be served

States may also be made **in memory** (``in_memory``): then a step writes its delta and nothing else. Each such state
has a **lineage** of encodings on disk, a keyframe and the deltas after it, which retention keeps; after a crash the
caller makes the state again from them. Once the deltas of a lineage amount to 60 % of a state, the state is copied to
disk in the background, where it begins a new lineage. So every file is written once and never changed, and all that is
written for a step is its delta and, over time, 1.7 times as much for the copies.

File names are made of integers only. All calls block on the disk, most of them briefly. ``begin`` (fsync, and it hashes
a partial encoding), ``finish`` (fsync), ``prepare``, ``advance``, ``materialise``, ``verify_state`` and ``list_chunks``
(they go through the whole state) belong in a thread; the last five in the same one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.runtime.run_folder import fsync_folder, write_atomically
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.limits import COUNTER_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.materialise import Materialisation
from rollcast.wire.versions.records import KEYFRAME_ID, Manifest, VerifiedVersion, parse_announcement
from rollcast.wire.versions.retention import Kept, Retention, surplus
from rollcast.wire.versions.state_memory import BackgroundCopies
from rollcast.wire.versions.stored_encoding import Draft, StoredEncoding, store_error

__all__ = ["ChunkStore", "StoredEncoding"]

log = structlog.get_logger()

_Key = tuple[Version, EncodingId]

_ANNOUNCEMENT = "announcement"
_NEW_STATE = "0.new"
# Share of a state that the deltas of a lineage may take before the state is copied to disk: a step then writes
# (0.6 + 1) / 0.6 = 2.7 times its delta, all in all. Replaying a lineage after a crash takes a pass over the state each.
_COPY_AT_SHARE = 0.6
_LINEAGE_MOST = 90  # deltas; peer.relay.version_book knows a few more announcements than that after a restart
_VERSION_NAME = re.compile(r"0|[1-9][0-9]{0,18}")


class ChunkStore:
    """The versions that one process keeps.

    Args:
        folder: the folder of this store alone; it is created if missing.
        keep_versions: number of newest states that ``prune`` keeps.
        keep_deltas: number of newest versions whose deltas it keeps.
        keep_bytes: limit on the bytes of all of them on disk; 0 means no limit.
        in_memory: make states from deltas in memory, as long as they fit.
        memory_only: keep everything in memory, of states the newest alone unless others are being read; versions that
            are on disk are removed.
        hash_states: compare a keyframe that arrives with the record's state hash, besides its chunks with the list.
            Both are signed together: the learner's own mistake alone can make them differ, and one process that looks
            for it before the version is announced (the origin) is enough. Chunks smaller than the state hash's leaves
            would have to be hashed twice.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        keep_versions: int,
        *,
        keep_deltas: int = 16,
        keep_bytes: int = 0,
        in_memory: bool = False,
        memory_only: bool = False,
        hash_states: bool = True,
    ) -> None:
        self.folder = self._folder = folder
        self.announced = -1
        """The newest version known to be wanted: states in memory may be changed into it while a delta arrives."""
        self._hash_states = hash_states
        self._in_memory = in_memory or memory_only
        self._memory_only = memory_only
        self._retention = Retention(keep_versions, keep_deltas, keep_bytes)
        self._encodings: dict[tuple[int, int], StoredEncoding] = {}
        self._in_the_making: dict[Version, Materialisation] = {}
        self._copies = BackgroundCopies()
        self._beginning: set[Version] = set()  # prune does not touch these, because begin may run in another thread
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.draft_path.unlink(missing_ok=True)
            for version in self._versions_on_disk():
                if memory_only:
                    shutil.rmtree(self._version_folder(version))
                else:
                    self._open_version(version)
        except OSError as error:
            raise store_error(folder, error) from None

    def close(self) -> None:
        """Close all file descriptors."""
        for work in self._in_the_making.values():
            work.close()
        self._in_the_making.clear()
        self._copies.close()
        for encoding in list(self._encodings.values()):
            encoding.close()
        self._encodings.clear()

    @property
    def draft_path(self) -> Path:
        """Return the name of the file that the caller may fill with a draft, for ``begin``."""
        return self._folder / "draft"

    def begin(
        self, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes, draft: Draft | None = None
    ) -> StoredEncoding:
        """Return an encoding that is ready for chunks: an open one, one resumed by hashing what is on disk, or a new
        one.

        Args:
            draft: its beginning, which takes the place of what is on disk; its file is this store's from now on.

        Raises:
            MalformedMessage: ``chunk_list`` is not the signed one.
            StoreError: the disk is full or read-only, or another version of that number is being read.
        """
        manifest.check_chunk_list(chunk_list)
        known = self.get(manifest.version, manifest.encoding_id)
        if known is not None and known.verified.record_hash == verified.record_hash and known.manifest == manifest:
            return known
        self._beginning.add(manifest.version)
        try:
            self._remove_other(verified, manifest)
            if not self._memory_only:
                self._write_signed(verified, manifest, chunk_list)
            encoding = StoredEncoding(
                self._version_folder(manifest.version),
                verified,
                manifest,
                chunk_list,
                memory_only=self._memory_only,
                hash_states=self._hash_states,
            )
            encoding.open_partial(draft)
            self._encodings[manifest.version, manifest.encoding_id] = encoding
        finally:
            self._beginning.discard(manifest.version)
        return encoding

    def get(self, version: int, encoding_id: int = KEYFRAME_ID) -> StoredEncoding | None:
        """Return an encoding that is complete or was begun by this process, or None."""
        return self._encodings.get((version, encoding_id))

    def finished(self) -> list[StoredEncoding]:
        """Return every finished encoding, ordered by version and encoding."""
        finished = [encoding for encoding in list(self._encodings.values()) if encoding.finished]
        return sorted(finished, key=lambda encoding: (encoding.version, encoding.encoding_id))

    def versions(self) -> list[Version]:
        """Return the versions whose state, and whose base's if they have one, is held and durable, ascending."""
        states = self._states()
        return [one.version for one in states if self._base_held(one.verified, states)]

    def _states(self) -> list[StoredEncoding]:
        return [encoding for encoding in self.finished() if encoding.state_held]

    @staticmethod
    def _base_held(verified: VerifiedVersion, states: Sequence[StoredEncoding]) -> bool:
        base = verified.base
        return base is None or any(base.record_hash == one.verified.record_hash for one in states)

    # ------------------------------------------------------------ states from deltas

    def prepare(self, delta: StoredEncoding) -> None:
        """Reserve disk space for the state that a delta leads to, ahead of its chunks. May be called again.

        Raises:
            StoreError: the base is not held in this store, or the disk is full or read-only.
        """
        self._work_on(delta)

    def advance(self, budget_bytes: int) -> bool:
        """Do work ahead of time: make prepared states, hash keyframes that arrive, copy states in memory to disk.

        Args:
            budget_bytes: bytes of state to process before this returns.

        Returns:
            Whether anything was done; if so, call again when idle.

        Raises:
            StoreError: the disk refuses.
        """
        for version in sorted(self._in_the_making, reverse=True):
            if self._in_the_making[version].advance(budget_bytes, in_place=version <= self.announced):
                return True
        receiving = [encoding for encoding in list(self._encodings.values()) if not encoding.finished]
        return any(encoding.advance_hash(budget_bytes) for encoding in receiving) or self._advance_copy(budget_bytes)

    def materialise(self, delta: StoredEncoding, *, keep_base: bool = False) -> StoredEncoding:
        """Make the state that a complete delta leads to.

        The base is no longer held afterwards, also after an error, if it was in memory and could be changed in place.

        Args:
            keep_base: never change the base in place.

        Returns:
            The version's keyframe: complete and verified, but neither finished nor listed if it was not stored before.

        Raises:
            CorruptChunk: the base with this delta does not hash to the signed state. Nothing of it is kept.
            StoreError: base or chunks are missing, or the disk refuses.
        """
        known = self.get(delta.version)
        if known is not None and known.state_held:
            return known
        work = self._work_on(delta)
        lineage = self._lineage(delta)
        try:
            work.finish(keep_base=keep_base)
        except (CorruptChunk, StoreError):
            work.path.unlink(missing_ok=True)
            raise
        finally:
            self._let_go(delta.version)
            if work.base_taken:
                self._base_taken(delta.manifest.base_version or Version(0))
        verified = delta.verified
        keyframe = StoredEncoding(self._version_folder(delta.version), verified, verified.keyframe, None)
        if work.memory is None:
            keyframe.open_made(work.path, work.leaves)
        else:
            keyframe.adopt_memory(work.memory, work.leaves, lineage)
        # A keyframe that was being received is dropped; its descriptor is closed once no reader uses it.
        self._encodings[delta.version, KEYFRAME_ID] = keyframe
        self._begin_copy(keyframe)
        return keyframe

    # ------------------------------------------------------------ states in memory, and their copies on disk

    def _lineage(self, delta: StoredEncoding) -> tuple[_Key, ...]:
        """Return the encodings on disk from which the state that a delta leads to can be made again."""
        if self._memory_only:
            return ()
        base = self.get(delta.manifest.base_version or Version(0))
        before = base.lineage if base is not None and base.in_memory else ()
        start = (delta.manifest.base_version or Version(0), KEYFRAME_ID)
        return (*(before or (start,)), (delta.version, delta.encoding_id))

    def _base_taken(self, version: Version) -> None:
        """Close an encoding whose memory has become another version's, or use its copy on disk if there is one."""
        taken = self._encodings.pop((version, KEYFRAME_ID))
        self._copies.before_change(version, taken.manifest.size_bytes)  # what was not changed, if the delta was refused
        if version not in self._copies:
            self._use_copy(taken)

    def _use_copy(self, encoding: StoredEncoding) -> bool:
        """Open the copy on disk of a state that was in memory. Returns False if there is none."""
        return self._reopen(encoding.verified, encoding.chunk_list() if encoding.listed else None)

    def _reopen(self, verified: VerifiedVersion, chunk_list: bytes | None) -> bool:
        """Open the finished file of a state. Returns False if there is none."""
        keyframe = StoredEncoding(self._version_folder(verified.version), verified, verified.keyframe, chunk_list)
        if not keyframe.open_complete():
            return False
        self._encodings[verified.version, KEYFRAME_ID] = keyframe
        return True

    def _begin_copy(self, keyframe: StoredEncoding) -> None:
        """Begin to copy a state in memory to disk if its lineage is long, and no other copy is being written."""
        deltas = [self.get(*key) for key in keyframe.lineage[1:]]
        delta_bytes = sum(delta.manifest.size_bytes for delta in deltas if delta is not None)
        long = delta_bytes >= _COPY_AT_SHARE * keyframe.manifest.size_bytes or len(deltas) >= _LINEAGE_MOST
        if keyframe.memory is not None and long and not self._copies:
            path = self._version_folder(keyframe.version) / _NEW_STATE
            self._copies.begin(keyframe.version, keyframe.memory, path)

    def _advance_copy(self, budget_bytes: int) -> bool:
        """Write more of a copy; once it is durable, let all lineages that contain its version begin with it."""
        worked, copied = self._copies.advance(budget_bytes)
        verified = None if copied is None else self._stored_version(copied)
        if copied is None or verified is None:
            return worked
        if self.get(copied) is None:
            self._reopen(verified, None)
        for encoding in list(self._encodings.values()):
            if any(key[0] == copied for key in encoding.lineage):
                later = (key for key in encoding.lineage if key[0] > copied)
                encoding.lineage = ((copied, KEYFRAME_ID), *later)
        return worked

    # ------------------------------------------------------------ retention

    def prune(self, spared: Set[tuple[Version, EncodingId]] = frozenset()) -> list[tuple[Version, EncodingId]]:
        """Remove what exceeds ``Retention``, except encodings being read or received, the states from which others are
        being made, and the bases of kept adapters.

        Encodings that an earlier process began and this one has not resumed are removed once a newer state is finished.

        Args:
            spared: encodings to keep although newer ones suffice, unless they take too many bytes.

        Returns:
            The finished encodings that were removed, ascending.

        Raises:
            StoreError: the disk refuses.
        """
        states = self._states()
        if not states:
            return []
        removed = []
        for one in surplus(self._kept(spared), self._retention):
            key = Version(one.version), EncodingId(one.encoding_id)
            if one.in_memory and self._use_copy(self._encodings[key]):
                continue  # only its memory is freed; the copy counts as a state on disk from now on
            if self._remove(*key):
                removed.append(key)
        for version in self._versions_on_disk():
            # What an earlier process received of a base is resumed, however many newer adapters come before it.
            if version < states[-1].version and version not in self._beginning | self._bases():
                self._sweep(version)
        return removed

    def discard(self, version: Version) -> bool:
        """Remove one version, complete or not. Returns False if it is being read.

        Raises:
            StoreError: the disk refuses.
        """
        mine = self._of(version)
        if any(encoding.readers for encoding in mine):
            return False
        self._let_go(version)
        self._copies.drop(version)
        for encoding in mine:
            del self._encodings[version, encoding.encoding_id]
        folder = self._version_folder(version)
        try:
            if folder.exists():
                (folder / _ANNOUNCEMENT).unlink(
                    missing_ok=True
                )  # first, because without it no encoding here is visible
                shutil.rmtree(folder)
                fsync_folder(self._folder)
        except OSError as error:
            raise store_error(folder, error) from None
        return True

    def discard_encoding(self, version: Version, encoding_id: EncodingId) -> bool:
        """Remove one encoding of a version, complete or not. Returns False if it is being read.

        Raises:
            StoreError: the disk refuses.
        """
        work = self._in_the_making.get(version)
        if work is not None and work.delta.encoding_id == encoding_id:
            self._let_go(version)
        return self._remove(version, encoding_id)

    # ------------------------------------------------------------ inside

    def _of(self, version: Version) -> list[StoredEncoding]:
        return [encoding for encoding in list(self._encodings.values()) if encoding.version == version]

    def _work_on(self, delta: StoredEncoding) -> Materialisation:
        """Return the state that is being made from this delta; another one of the same version is dropped."""
        work = self._in_the_making.get(delta.version)
        if work is not None and work.delta is delta:
            return work
        self._let_go(delta.version)
        base = self.get(delta.manifest.base_version or Version(0))
        if base is None or delta.manifest.base_version is None:
            raise StoreError(f"the base of {delta!r} is not in this store")
        work = Materialisation(
            base,
            delta,
            self._version_folder(delta.version) / _NEW_STATE,
            in_memory=self._in_memory and base.finished,
            memory_only=self._memory_only,
            before_change=partial(self._copies.before_change, base.version),
        )
        self._in_the_making[delta.version] = work
        return work

    def _let_go(self, version: Version) -> None:
        work = self._in_the_making.pop(version, None)
        if work is not None:
            work.close()

    def _kept(self, spared: Set[tuple[Version, EncodingId]]) -> list[Kept]:
        applied = [work.delta for work in self._in_the_making.values()]
        bases = self._bases()
        lineages = {key for encoding in list(self._encodings.values()) for key in encoding.lineage}
        chain = self._chain()
        return [
            Kept(
                encoding.version,
                encoding.encoding_id,
                0 if encoding.in_memory and not self._memory_only else encoding.manifest.size_bytes,
                encoding.state_held,
                busy=encoding.readers > 0
                or encoding.version in self._beginning
                or encoding in applied
                or (encoding.version, encoding.encoding_id) in chain
                or (not encoding.in_memory and (encoding.version, encoding.encoding_id) in lineages)
                or (encoding.version in bases and encoding.state_held),
                spared=(encoding.version, encoding.encoding_id) in spared,
                in_memory=encoding.in_memory and encoding.state_held,
            )
            for encoding in self.finished()
        ]

    def _chain(self) -> set[_Key]:
        """Return the deltas that lead on from the newest state: after a restart, the lineage that is applied again."""
        deltas = [encoding for encoding in self.finished() if encoding.manifest.kind == "delta"]
        following = {delta.manifest.base_version: (delta.version, delta.encoding_id) for delta in deltas}
        version, chain = max((state.version for state in self._states()), default=None), set[_Key]()
        while len(chain) < _LINEAGE_MOST and version in following:
            chain.add(following[version])
            version = following[version][0]
        return chain

    def _bases(self) -> set[Version]:
        """Return the versions over whose states others here are adapters."""
        records = [encoding.verified.record for encoding in list(self._encodings.values())]
        return {record.base.version for record in records if record.base is not None}

    def _remove(self, version: Version, encoding_id: EncodingId) -> bool:
        encoding = self.get(version, encoding_id)
        if encoding is not None and encoding.readers:
            return False
        self._encodings.pop((version, encoding_id), None)
        if not self._of(version):
            return self.discard(version)
        self._sweep(version)
        return True

    def _sweep(self, version: Version) -> None:
        """Remove the files of a version that belong to no open encoding."""
        alive = {f"{encoding.encoding_id}" for encoding in self._of(version)}
        if not alive:
            self.discard(version)
            return
        if self._memory_only:
            return
        keep = {_ANNOUNCEMENT} | ({_NEW_STATE} if version in self._in_the_making or version in self._copies else set())
        folder = self._version_folder(version)
        try:
            for path in folder.iterdir():
                if path.name not in keep and (path.name == _NEW_STATE or path.stem not in alive):
                    path.unlink()
        except OSError as error:
            raise store_error(folder, error) from None

    def _version_folder(self, version: Version) -> Path:
        return self._folder / str(version)

    def _versions_on_disk(self) -> list[Version]:
        names = [path.name for path in self._folder.iterdir() if _VERSION_NAME.fullmatch(path.name)]
        return sorted(Version(int(name)) for name in names if int(name) <= COUNTER_MAX)

    def _open_version(self, version: Version) -> None:
        verified = self._stored_version(version)
        if verified is None:
            return
        for manifest in verified.manifests:
            hashes = self._stored_list(manifest)
            if hashes is None and manifest.encoding_id != KEYFRAME_ID:
                continue
            encoding = StoredEncoding(self._version_folder(version), verified, manifest, hashes)
            if encoding.open_complete():
                self._encodings[version, manifest.encoding_id] = encoding

    def _stored_list(self, manifest: Manifest) -> bytes | None:
        try:
            hashes = self._list_path(manifest).read_bytes()
            manifest.check_chunk_list(hashes)
        except (OSError, MalformedMessage):
            return None
        return hashes

    def _stored_version(self, version: Version) -> VerifiedVersion | None:
        """Return the announcement on disk, or None if there is no usable one."""
        try:
            data = (self._version_folder(version) / _ANNOUNCEMENT).read_bytes()
            verified = parse_announcement(pb.VersionAnnouncement.FromString(data))
        except FileNotFoundError:
            return None
        except (OSError, DecodeError, MalformedMessage) as error:
            log.warning("stored version unusable", version=version, reason=str(error))
            return None
        return verified if verified.version == version else None

    def _remove_other(self, verified: VerifiedVersion, manifest: Manifest) -> None:
        """Remove what is stored under this version number if it belongs to another run or is cut differently."""
        known = self.get(manifest.version, manifest.encoding_id)
        stored = self._stored_version(manifest.version)
        is_other = stored is not None and stored.record_hash != verified.record_hash
        if (known is not None or is_other) and not self.discard(manifest.version):
            raise StoreError(f"version {manifest.version} exists with other bytes and is being read")

    def _write_signed(self, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> None:
        """Write announcement and chunk list durably, before any encoding can be complete."""
        folder = self._version_folder(manifest.version)
        announcement = verified.announcement.SerializeToString(deterministic=True)
        try:
            if not folder.exists():
                folder.mkdir(parents=True)
                fsync_folder(self._folder)
            for path, data in ((folder / _ANNOUNCEMENT, announcement), (self._list_path(manifest), chunk_list)):
                if not path.exists() or path.read_bytes() != data:
                    write_atomically(path, data)
        except OSError as error:
            raise store_error(folder, error) from None

    def _list_path(self, manifest: Manifest) -> Path:
        return self._version_folder(manifest.version) / f"{manifest.encoding_id}.list"
