"""Keep the learner's own copies of published versions, with which it recomputes behaviour log-probabilities.

On disk a version is `N.state` (the raw state), `N.delta1` and so on (its deltas, by encoding) and `N.version` (the
signed announcement, which carries the state's hash). The announcement is written last, so a version without one is
unfinished and does not exist. The announcement of a version whose bytes were removed stays as `N.record`: a learner
that repeats training from an older checkpoint must produce the same bits, and signs no version twice.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from learner.kill_points import kill_point
from learner.publishing.mapped_files import hash_of, map_file
from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import absent_adapters
from rollcast.policy.params import Params
from rollcast.policy.snapshot import Snapshot, views
from rollcast.runtime.errors import CheckpointError, MalformedMessage
from rollcast.runtime.run_folder import fsync_folder, run_folder_error, write_atomically
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike, chunk_list
from rollcast.wire.versions.records import Manifest, VerifiedVersion, VersionRecord, parse_announcement
from rollcast.wire.versions.tensors import TensorSpec

BASE_VERSION = Version(0)
"""The first version of a run with adapters, which is the base of all others."""

Begin = Callable[[Path, Version], Callable[[], tuple[TensorSpec, ...]]]
"""Begins to freeze a version into a file; see RetainedVersions.freeze."""

_FIX = "restore the run folder, or start the run anew in an empty one"


@dataclass(frozen=True, slots=True)
class SnapshotFile(Snapshot):
    """A snapshot whose bytes are a mapped file under a temporary name."""

    path: Path


class Freezing:
    """A snapshot whose parameters are copied, and whose file is not written yet."""

    def __init__(self, path: Path, write: Callable[[], tuple[TensorSpec, ...]]) -> None:
        self._path = path
        self._write = write

    def finish(self) -> SnapshotFile:
        """Write the file and return the snapshot. It blocks, may run on any thread, and is called once.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        try:
            tensors = self._write()
            kill_point("version_written")
            return SnapshotFile(tensors, map_file(self._path), self._path)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            raise run_folder_error(self._path.parent, error) from None


class RetainedVersions:
    """Published versions on disk, of which the last few used are mapped into memory.

    Several threads may retain, read and remove different versions at the same time. Stand-ins are states that were
    trained again after a restart and may differ from the published ones; they are used if the published bytes are gone,
    and have no name on disk.

    Args:
        folder: the folder of the files, which exists.
        mapped: how many versions' states stay mapped, so that each is checked against its hash only once.
    """

    def __init__(self, folder: Path, *, mapped: int) -> None:
        self._folder = folder
        self._mapped = mapped
        self._states: OrderedDict[Version, tuple[VersionRecord, BytesLike]] = OrderedDict()
        self._stand_ins: OrderedDict[Version, Snapshot] = OrderedDict()
        self._number = itertools.count()
        self._lock = threading.Lock()  # guards _states and _stand_ins

    def map_at_least(self, versions: int) -> None:
        """Keep so many versions' states mapped from now on, if it were fewer."""
        self._mapped = max(self._mapped, versions)

    def freeze(self, version: Version, begin: Begin) -> Freezing:
        """Begin a snapshot in a file on our disk; it takes no memory of the host except the page cache.

        Args:
            version: the version that the snapshot is to become.
            begin: copies the parameters, given the path of the empty file and the version, and returns the function
                that writes them there, which may be called on another thread while training goes on
                (learner.training.freezing).

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        path = self._folder / f".{version:012d}.state.{next(self._number)}.{os.getpid()}.tmp"
        try:
            path.touch()
            return Freezing(path, begin(path, version))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise run_folder_error(self._folder, error) from None

    def retain(self, signed: VerifiedVersion, snapshot: Snapshot, deltas: Mapping[EncodingId, BytesLike]) -> None:
        """Keep a version and its deltas durably, the announcement last.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        path = self._state_path(signed.version)
        try:
            if isinstance(snapshot, SnapshotFile):
                _move_durably(snapshot.path, path)
            else:
                write_atomically(path, snapshot.state_bytes)
            for encoding_id, delta in deltas.items():
                write_atomically(self._delta_path(signed.version, encoding_id), delta)
            write_atomically(self._announcement_path(signed.version), signed.announcement.SerializeToString())
        except OSError as error:
            raise run_folder_error(self._folder, error) from None
        self._remember(signed.record, snapshot.state_bytes)
        kill_point("version_kept")

    def stand_in(self, version: Version, snapshot: Snapshot) -> None:
        """Use this snapshot for a version whose published bytes are gone; it is ignored if they are kept."""
        if self._announcement_path(version).exists():
            return
        with self._lock:
            self._stand_ins[version] = snapshot
            while len(self._stand_ins) > self._mapped:
                self._stand_ins.popitem(last=False)

    def discard(self, snapshot: Snapshot) -> None:
        """Delete the file of a snapshot that became no version; bytes that are still mapped stay readable."""
        if isinstance(snapshot, SnapshotFile):
            snapshot.path.unlink(missing_ok=True)

    def versions(self) -> list[Version]:
        """Return every complete version, oldest first."""
        return sorted(Version(int(path.stem)) for path in self._folder.glob("*.version"))

    def signed(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version; None if it is not kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return _read_signed(self._announcement_path(version), version)

    def record(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version, also if its bytes were removed; None if it was never kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return self.signed(version) or _read_signed(self._record_path(version), version)

    def state(self, version: Version) -> tuple[VersionRecord, BytesLike]:
        """Return the record and the state of a version; a state read from disk is checked against the record's hash.

        Raises:
            CheckpointError: the version is not kept, or its bytes are not the published ones.
        """
        with self._lock:
            found = self._states.get(version)
            if found is not None:
                self._states.move_to_end(version)
                return found
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
        """Return the tensors of `used` by name as views of the mapped file, which each device reads its slices from.

        In a run with adapters these are what comes over the base: for the base itself zeros, and no noise.

        Raises:
            CheckpointError: see state.
            MalformedMessage: the version is not of this architecture.
        """
        if config.lora is not None and version == BASE_VERSION:
            return absent_adapters(config)
        return views(config, *self.used(version))

    def base(self, version: Version) -> tuple[VersionRecord, BytesLike]:
        """Return record and state of a version to make a delta from, without evicting another mapped version.

        Raises:
            CheckpointError: see state.
        """
        with self._lock:
            found = self._states.get(version)
        return found or self._read(version)

    def delta(self, version: Version, manifest: Manifest) -> bytes:
        """Return the delta of a version that a manifest describes.

        Raises:
            CheckpointError: the delta is not kept, or its bytes are not the signed ones.
        """
        try:
            data = self._delta_path(version, manifest.encoding_id).read_bytes()
            manifest.check_chunk_list(chunk_list(data, manifest.chunk_size_bytes))
        except (OSError, MalformedMessage) as error:
            raise CheckpointError(f"cannot read a delta of version {version}", cause=str(error), fix=_FIX) from None
        return data

    def remove(self, gone: Collection[Version], *, oldest_replayed: int) -> None:
        """Remove the bytes of these versions, and of no other that another thread retains at the same time.

        The base of the newest version's adapters stays.

        oldest_replayed: step of the oldest checkpoint; records of older versions are removed, because no replay needs
        them.
        """
        bases = self._bases()
        for version in [one for one in gone if one not in bases]:
            # The announcement goes first: files without one count as unfinished and are removed at the next start.
            with suppress(FileNotFoundError):
                self._announcement_path(version).rename(self._record_path(version))
            kill_point("version_half_removed")
            for path in (self._state_path(version), *self._folder.glob(f"{version:012d}.delta*")):
                path.unlink(missing_ok=True)
            with self._lock:
                self._states.pop(version, None)
        for path in self._folder.glob("*.record"):
            if int(path.stem) < oldest_replayed:
                path.unlink(missing_ok=True)
        if gone:
            fsync_folder(self._folder)

    def _bases(self) -> tuple[Version, ...]:
        newest = self.signed(max(self.versions(), default=Version(0)))
        return () if newest is None or newest.record.base is None else (newest.record.base.version,)

    def remove_unfinished(self) -> None:
        """Remove files that a killed process left unfinished."""
        for path in (*self._folder.glob("*.state"), *self._folder.glob("*.delta*")):
            if not path.with_suffix(".version").exists():
                path.unlink(missing_ok=True)
        for path in self._folder.glob(".*.tmp"):
            if f".{os.getpid()}." not in path.name:
                path.unlink(missing_ok=True)

    def _read(self, version: Version) -> tuple[VersionRecord, BytesLike]:
        record = self._record(version)
        try:
            state = map_file(self._state_path(version))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read version {version}", cause=str(error), fix=_FIX) from None
        if hash_of(state) != record.state_hash:
            raise CheckpointError(
                f"the copy of version {version} is damaged", cause="its bytes do not match its record", fix=_FIX
            )
        return record, state

    def _record(self, version: Version) -> VersionRecord:
        signed = self.signed(version)
        if signed is None:
            kept = self.versions()
            cause = f"kept are {len(kept)} versions from {kept[0]} to {kept[-1]}" if kept else "none is kept"
            raise CheckpointError(f"no copy of version {version} in {self._folder}", cause=cause, fix=_FIX)
        return signed.record

    def _remember(self, record: VersionRecord, state: BytesLike) -> None:
        with self._lock:
            self._states[record.version] = (record, state)
            self._states.move_to_end(record.version)
            while len(self._states) > self._mapped:
                self._states.popitem(last=False)

    def _state_path(self, version: Version) -> Path:
        return self._folder / f"{version:012d}.state"

    def _delta_path(self, version: Version, encoding_id: EncodingId) -> Path:
        return self._folder / f"{version:012d}.delta{encoding_id}"

    def _announcement_path(self, version: Version) -> Path:
        return self._folder / f"{version:012d}.version"

    def _record_path(self, version: Version) -> Path:
        return self._folder / f"{version:012d}.record"


def _move_durably(written: Path, path: Path) -> None:
    """Fsync a written file and then rename it, so that the name never refers to an incomplete file."""
    descriptor = os.open(written, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    written.rename(path)
    kill_point("version_renamed")
    fsync_folder(path.parent)
    kill_point("version_durable")


def _read_signed(path: Path, version: Version) -> VerifiedVersion | None:
    try:
        return parse_announcement(pb.VersionAnnouncement.FromString(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, DecodeError, MalformedMessage) as error:
        raise CheckpointError(f"cannot read the record of version {version}", cause=str(error), fix=_FIX) from None


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
