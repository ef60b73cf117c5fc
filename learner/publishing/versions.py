"""Keep the learner's own copies of published versions, with which it recomputes behaviour log-probabilities.

The newest ones are in memory, as many as fit. On disk are the deltas from version to version and one or two raw states;
every other state is made from these (learner.publishing.lineage). So publishing writes the deltas, and now and then, in
the background, a copy of the newest state, from which the older ones then follow backwards.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from learner.kill_points import kill_point
from learner.publishing.growth import Growth, Write
from learner.publishing.lineage import Path as Way
from learner.publishing.mapped_files import hash_of, map_file
from learner.publishing.memory_files import MemoryFile, MemoryFiles, MemoryMap, SpentState, take_unread
from learner.publishing.rebuilding import Delta, apply_in_place, rebuild
from learner.publishing.version_files import FIX, VersionFiles
from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import absent_adapters
from rollcast.policy.params import Params
from rollcast.policy.snapshot import Snapshot, views
from rollcast.runtime.errors import CheckpointError, RunFolderError
from rollcast.runtime.run_folder import run_folder_error
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import PREVIOUS_ID, Manifest, VerifiedVersion, VersionRecord
from rollcast.wire.versions.tensors import TensorSpec

BASE_VERSION = Version(0)
"""The first version of a run with adapters, which is the base of all others."""

Begin = Callable[[Path, Version], Write]
"""Begins to freeze a version into a file; see RetainedVersions.freeze."""

Kept = tuple[VersionRecord, BytesLike]
"""The record and the state of a version."""

# Share of a state that the deltas since the last raw state may take before another one is written: a step then writes
# (0.6 + 1) / 0.6 = 2.7 times its delta, all in all.
_COPY_AT_SHARE = 0.6
_DELTAS_MOST = 64  # as many are applied one after the other after a restart
_ATTEMPTS = 3  # to read files that another thread may replace by others meanwhile

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FrozenSnapshot(Snapshot):
    """A snapshot whose bytes are being written.

    Args:
        growth: how many of them are there.
        path: the mapped file on disk, under a temporary name; None: they are in memory.
    """

    growth: Growth
    path: Path | None


class Freezing:
    """A snapshot whose parameters are copied, and whose bytes are not written yet.

    Args:
        write: writes them into a file.
        place: the file, on disk or in memory.
        folder: the folder of the kept versions.
    """

    def __init__(self, write: Write, place: Path | MemoryFile, folder: Path) -> None:
        self._write = write
        self._place = place
        self._folder = folder

    def begin(self) -> FrozenSnapshot:
        """Begin to write the bytes, on a thread of its own, and return the snapshot; called once.

        Raises:
            RunFolderError: the disk is full or read-only, or there is not enough memory.
        """
        place, size_bytes = self._place, self._write.size_bytes
        try:
            if isinstance(place, Path):
                if place.stat().st_size != size_bytes:
                    os.truncate(place, size_bytes)
                state = map_file(place)
            else:
                if os.fstat(place.descriptor).st_size < size_bytes:
                    os.ftruncate(place.descriptor, size_bytes)
                state = place.map(size_bytes)
        except OSError as error:
            raise self._error(error) from None
        path = place if isinstance(place, Path) else None
        snapshot = FrozenSnapshot(self._write.tensors, state, Growth(), path)
        threading.Thread(target=self._run, args=(snapshot.growth,), name="freeze", daemon=True).start()
        return snapshot

    def finish(self) -> FrozenSnapshot:
        """Write the bytes and return the snapshot, as `begin` does.

        Raises:
            RunFolderError: see begin.
        """
        snapshot = self.begin()
        snapshot.growth.wait(self._write.size_bytes)
        return snapshot

    def _run(self, growth: Growth) -> None:
        try:
            self._write(growth.reached)
            kill_point("version_written")
        except OSError as error:
            growth.failed(self._error(error))
        except Exception as error:
            growth.failed(error)

    def _error(self, error: OSError) -> RunFolderError:
        if isinstance(self._place, Path):
            self._place.unlink(missing_ok=True)
        return run_folder_error(self._folder, error)


class RetainedVersions:
    """Published versions on disk, of which the states of the last few used are in memory or mapped.

    Several threads may retain, read and remove different versions at the same time. Stand-ins are states that were
    trained again after a restart and may differ from the published ones; they are used if the published bytes are gone,
    and have no name on disk.

    Args:
        folder: the folder of the files, which exists.
        mapped: how many versions' states stay in memory, if they fit, or mapped, so that each is checked against its
            hash only once.
        in_memory: keep states that follow from others by deltas in memory and not on disk. Otherwise each version has
            its raw state on disk.
        newest_only: keep one state in memory, whatever ``mapped`` is, and let the next one have its memory.
    """

    def __init__(self, folder: Path, *, mapped: int, in_memory: bool = False, newest_only: bool = False) -> None:
        self._folder = folder
        self._mapped = 1 if newest_only else mapped
        self._newest_only = newest_only
        self._in_memory = in_memory
        self._files = VersionFiles(folder)
        self._memory = MemoryFiles()
        self._states: OrderedDict[Version, Kept] = OrderedDict()
        self._stand_ins: OrderedDict[Version, Snapshot] = OrderedDict()
        self._moving: Kept | None = None  # see moving_base
        self._retaining: set[Version] = set()  # their files are being written
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="copy-version")
        self._copying: Future[None] | None = None
        self.copied: Version | None = None  # whose state is being written in the background, or was last
        self._number = itertools.count()
        self._lock = threading.Lock()  # guards _states, _stand_ins and _retaining

    def map_at_least(self, versions: int) -> None:
        """Keep so many versions' states mapped from now on, if it were fewer."""
        if not self._newest_only:
            self._mapped = max(self._mapped, versions)

    # ------------------------------------------------------------ new versions

    def freeze(self, version: Version, begin: Begin, *, on_disk: bool = False) -> Freezing:
        """Begin a snapshot, in memory if deltas may lead to it and it fits, or else in a file on our disk.

        Args:
            version: the version that the snapshot is to become.
            begin: copies the parameters, given the path of the file and the version, and returns what writes them
                there, on another thread while training goes on (learner.training.freezing). A file on disk is empty;
                one in memory has bytes of any kind.
            on_disk: write it to disk in any case.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        memory = None if on_disk else self._memory_for_next()
        if memory is not None:
            return Freezing(begin(memory.path, version), memory, self._folder)
        path = self._files.temporary(version, next(self._number))
        try:
            path.touch()
            return Freezing(begin(path, version), path, self._folder)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise run_folder_error(self._folder, error) from None

    def retain(self, signed: VerifiedVersion, snapshot: Snapshot, deltas: Mapping[EncodingId, BytesLike]) -> None:
        """Keep a version and its deltas durably, the announcement last.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        version = signed.version
        with self._lock:
            self._retaining.add(version)
        try:
            if isinstance(snapshot, FrozenSnapshot) and snapshot.path is not None:
                self._files.move_state(snapshot.path, version)
            elif not self._follows(signed, deltas):
                self._files.write_state(version, snapshot.state_bytes, number=next(self._number))
            for encoding_id, delta in deltas.items():
                self._files.write_delta(version, encoding_id, delta)
            self._files.write_announcement(signed)
        except OSError as error:
            raise run_folder_error(self._folder, error) from None
        finally:
            with self._lock:
                self._retaining.discard(version)
        self.remember(signed.record, snapshot)
        kill_point("version_kept")
        self._copy_if_due(signed.record, snapshot.state_bytes)

    def remember(self, record: VersionRecord, snapshot: Snapshot) -> None:
        """Use this snapshot as the state of a version that is kept; its hash was found equal to the record's."""
        self._remember(record, snapshot.state_bytes)

    def stand_in(self, version: Version, snapshot: Snapshot) -> None:
        """Use this snapshot for a version whose published bytes are gone; it is ignored if they are kept."""
        if self._files.signed(version) is not None:
            return
        with self._lock:
            self._stand_ins[version] = snapshot
            while len(self._stand_ins) > self._mapped:
                self._stand_ins.popitem(last=False)

    def discard(self, snapshot: Snapshot) -> None:
        """Delete the file of a snapshot that became no version; bytes that are still mapped stay readable."""
        if isinstance(snapshot, FrozenSnapshot) and snapshot.path is not None:
            snapshot.path.unlink(missing_ok=True)

    # ------------------------------------------------------------ what is kept

    def versions(self) -> list[Version]:
        """Return every complete version, oldest first."""
        return self._files.versions()

    def signed(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version; None if it is not kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return self._files.signed(version)

    def record(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version, also if its bytes were removed; None if it was never kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return self._files.record(version)

    def state(self, version: Version) -> Kept:
        """Return the record and the state of a version; one that was not in memory is checked against its hash.

        Raises:
            CheckpointError: the version is not kept, or its bytes are not the published ones.
        """
        found = self._found(version)
        if found is None:
            found = self._read(version)
            self._remember(*found)
        return found

    def used(self, version: Version) -> tuple[tuple[TensorSpec, ...], BytesLike]:
        """Return the tensors and the state of a version's stand-in if there is one, and of the version otherwise.

        Raises:
            CheckpointError: see state.
        """
        with self._lock:
            stand_in = self._stand_ins.get(version)
        if stand_in is not None:
            return stand_in.tensors, stand_in.state_bytes
        record, state = self.state(version)
        return record.tensors, state

    def host_params(self, version: Version, config: ModelConfig) -> Params:
        """Return the tensors of `used` by name as views of its bytes, which each device reads its slices from.

        In a run with adapters these are what comes over the base: for the base itself zeros, and no noise.

        Raises:
            CheckpointError: see state.
            MalformedMessage: the version is not of this architecture.
        """
        if config.lora is not None and version == BASE_VERSION:
            return absent_adapters(config)
        return views(config, *self.used(version))

    def base(self, version: Version) -> Kept:
        """Return record and state of a version to make a delta from, without evicting another one from memory.

        Raises:
            CheckpointError: see state.
        """
        with self._lock:
            found = self._states.get(version)
        return found or self._read(version)

    def spend(self, version: Version) -> tuple[VersionRecord, SpentState] | None:
        """Return a state that is given up while it is read, if only the newest is kept in memory and this is it.

        Afterwards the version is made of those on disk, or of the next one. Returns None, and gives up nothing, if
        another reader may use it.

        Raises:
            RunFolderError: it cannot be mapped.
        """
        with self._lock:
            copying = self._copying is not None and not self._copying.done()
            if not self._newest_only or version not in self._states or copying:
                return None
            record = self._states[version][0]
            file = take_unread(self._states, version)
        try:
            return None if file is None else (record, SpentState(file, record.state_size_bytes))
        except OSError as error:
            raise run_folder_error(self._folder, error) from None

    def moving_base(self, version: Version) -> Kept:
        """Return what `base` does, of a version that moves forward from call to call; for one thread at a time.

        It is changed in place into the next one, so the caller must not use it after the next call.

        Raises:
            CheckpointError: see state.
        """
        with self._lock:
            found = self._states.get(version)
        if found is not None:
            self._moving = None
            return found
        moving, self._moving = self._moving, None
        if moving is None or moving[0].version != version:
            moving = self._moved(moving, version) or self._read(version)
        with self._lock:
            shared = any(moving[1] is state for _, state in self._states.values())
        self._moving = None if shared else moving
        return moving

    def delta(self, version: Version, manifest: Manifest) -> bytes:
        """Return the delta of a version that a manifest describes.

        Raises:
            CheckpointError: the delta is not kept, or its bytes are not the signed ones.
        """
        return self._files.delta(version, manifest)

    # ------------------------------------------------------------ removing

    def remove(self, gone: Collection[Version], *, oldest_replayed: int) -> None:
        """Remove these versions, and the bytes that no version needs; none that another thread retains meanwhile.

        The base of the newest version's adapters stays.

        oldest_replayed: step of the oldest checkpoint; records of older versions are removed, because no replay needs
        them.
        """
        bases = self._bases()
        for version in [one for one in gone if one not in bases]:
            # The announcement goes first: a version without one does not exist.
            if self._files.signed(version) is not None:
                self._files.keep_record_only(version)
            kill_point("version_half_removed")
        with self._lock:
            for version in set(gone) & self._states.keys() - set(bases):
                del self._states[version]
        self._files.remove_records(oldest_replayed, self._remove_bytes())
        if gone:
            self._files.sync()

    def remove_unfinished(self) -> None:
        """Remove files that a killed process left unfinished."""
        self._files.remove_unfinished()

    def _remove_bytes(self) -> set[Version]:
        """Remove the states and deltas that no version needs; returns the versions of which something is needed."""
        # What is listed first and belongs to no version afterwards is of none that was retained meanwhile.
        found = self._files.with_bytes()
        with self._lock:
            retaining, kept = set(self._retaining), set(self.versions())
        lineage, on_disk = self._files.lineage(), self._files.states()
        states, deltas = lineage.needed(kept, on_disk) if self._in_memory else (kept & on_disk, set[Version]())
        for version in found - retaining:
            gone = version not in kept
            copied_since = version == self.copied and version not in on_disk  # it may have been written by now
            state, previous = version not in states and not copied_since, gone and version not in deltas
            self._files.remove_bytes(version, state=state, previous=previous, others=gone)
        return states | deltas

    def _bases(self) -> tuple[Version, ...]:
        newest = self.signed(max(self.versions(), default=Version(0)))
        return () if newest is None or newest.record.base is None else (newest.record.base.version,)

    # ------------------------------------------------------------ states in memory

    def _memory_for_next(self) -> MemoryFile | None:
        """Return memory for a state like the newest version's; None: write it to disk."""
        newest = max(self.versions(), default=None)
        signed = None if newest is None or not self._in_memory else self._files.signed(newest)
        return None if signed is None else self._room(signed.record.state_size_bytes)

    def _room(self, size_bytes: int) -> MemoryFile | None:
        """Return memory for a state, for which older ones are dropped if it does not fit; the newest one stays."""
        while True:
            memory = self._memory.open(size_bytes)
            with self._lock:
                older = [one for one in self._states if one != max(self._states)]
                if memory is not None or not older:
                    return memory
                del self._states[older[0]]

    def _found(self, version: Version) -> Kept | None:
        with self._lock:
            found = self._states.get(version)
            if found is not None:
                self._states.move_to_end(version)
            return found

    def _remember(self, record: VersionRecord, state: BytesLike) -> None:
        with self._lock:
            if self._newest_only and any(version > record.version for version in self._states):
                return
            self._states[record.version] = (record, state)
            self._states.move_to_end(record.version)
            while len(self._states) > self._mapped:
                self._states.popitem(last=False)

    # ------------------------------------------------------------ states that are made

    def _read(self, version: Version) -> Kept:
        """Read a state from disk, or make it of another one; see state."""
        for attempt in range(_ATTEMPTS):
            record = self._record(version)
            way = self._way(version)
            try:
                return record, self._state_by(way, record)
            except CheckpointError:
                # Another thread may have removed files of this way, because it wrote those of another one.
                if attempt == _ATTEMPTS - 1 or self._way(version) == way:
                    raise
        raise AssertionError("unreachable")

    def _way(self, version: Version) -> Way:
        lineage = self._files.lineage()
        with self._lock:
            sources = set(self._states)
        way = lineage.path(version, sources | self._files.states())
        return way or Way(version, ())  # then reading it says what is missing

    def _state_by(self, way: Way, record: VersionRecord) -> BytesLike:
        with self._lock:
            found = self._states.get(way.source)
        source = self._files.map_state(way.source) if found is None else found[1]
        if not way.steps:
            if found is None and hash_of(source) != record.state_hash:
                raise CheckpointError(
                    f"the copy of version {record.version} is damaged",
                    cause="its bytes do not match its record",
                    fix=FIX,
                )
            return source
        try:
            memory = self._room(record.state_size_bytes)
            return rebuild(record, source, self._deltas_of(way), memory, self._folder, FIX)
        except OSError as error:
            raise CheckpointError(f"cannot make version {record.version}", cause=str(error), fix=FIX) from None

    def _moved(self, moving: Kept | None, version: Version) -> Kept | None:
        """Change a state in memory into that of a version in place; None if no deltas lead there."""
        if moving is None or not isinstance(moving[1], memoryview) or not isinstance(moving[1].obj, MemoryMap):
            return None
        way = self._files.lineage().path(version, {moving[0].version})
        if way is None:
            return None
        record = self._record(version)
        return record, apply_in_place(record, moving[1].obj.file, self._deltas_of(way), FIX)

    def _deltas_of(self, way: Way) -> list[Delta]:
        found = []
        for step in way.steps:
            signed = self._files.record(step.delta)
            manifest = None if signed is None else signed.manifest(PREVIOUS_ID)
            if manifest is None:
                raise CheckpointError(f"no delta of version {step.delta} in {self._folder}", fix=FIX)
            found.append((self._files.delta(step.delta, manifest), step.forwards))
        return found

    def _record(self, version: Version) -> VersionRecord:
        signed = self.signed(version)
        if signed is None:
            kept = self.versions()
            cause = f"kept are {len(kept)} versions from {kept[0]} to {kept[-1]}" if kept else "none is kept"
            raise CheckpointError(f"no copy of version {version} in {self._folder}", cause=cause, fix=FIX)
        return signed.record

    # ------------------------------------------------------------ raw states on disk

    def _follows(self, signed: VerifiedVersion, deltas: Mapping[EncodingId, BytesLike]) -> bool:
        """Return whether the state of a version can be made from what is on disk and its delta."""
        manifest = signed.manifest(PREVIOUS_ID)
        if not self._in_memory or manifest is None or manifest.base_version is None or PREVIOUS_ID not in deltas:
            return False
        return self._files.lineage().path(manifest.base_version, self._files.states()) is not None

    def _copy_if_due(self, record: VersionRecord, state: BytesLike) -> None:
        """Write the state of the newest version to disk in the background if the deltas to it are long."""
        if not self._in_memory or (self._copying is not None and not self._copying.done()):
            return
        way = self._files.lineage().path(record.version, self._files.states())
        steps = () if way is None else way.steps
        delta_bytes = sum(self._files.delta_bytes(step.delta) for step in steps)
        if delta_bytes >= _COPY_AT_SHARE * len(state) or len(steps) >= _DELTAS_MOST:
            self.copied = record.version
            self._copying = self._copier.submit(self._copy, record.version, state)

    def _copy(self, version: Version, state: BytesLike) -> None:
        try:
            self._files.write_state(version, state, number=next(self._number))
        except OSError as error:
            _log.warning("a state in memory is not copied to disk, a later one will be", version=version, reason=error)


def no_longer_needed(
    versions: Collection[Version],
    *,
    step: int,
    newest: int,
    staleness_limit: int,
    checkpoints: Collection[int],
    measured: Collection[Version] = (),
) -> list[Version]:
    """Return which of these versions may be removed by a learner that completed ``step`` steps, oldest first.

    The ``newest`` most recent ones up to that step serve coming batches; later ones are of an earlier life, whose steps
    this one repeats. A learner that resumes from a checkpoint at step c replays the batches from c on, whose rollouts
    may come from any version in [c - S, c], S being the staleness limit; it trains the later versions again itself.
    ``measured`` versions stay, because the learner samples their evaluations itself if the peers cannot.
    """
    older = sorted(version for version in versions if version <= step and version not in measured)[:-newest]
    return [version for version in older if not any(at - staleness_limit <= version <= at for at in checkpoints)]
