"""Name, write and read the files of the learner's own copies of versions.

On disk a version is `N.delta1` and so on (its deltas, by encoding), `N.version` (the signed announcement, which carries
the state's hash), and `N.state` (the raw state) unless the state can be made from another one and deltas. The
announcement is written last, so a version without one is unfinished and does not exist. The announcement of a version
whose bytes were removed stays as `N.record`: a learner that repeats training from an older checkpoint must produce the
same bits, and signs no version twice.
"""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf.message import DecodeError

from learner.kill_points import kill_point
from learner.publishing.lineage import Lineage
from learner.publishing.mapped_files import map_file
from rollcast.runtime.errors import CheckpointError, MalformedMessage
from rollcast.runtime.run_folder import fsync_folder, write_atomically
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike, chunk_list
from rollcast.wire.versions.delta import is_invertible
from rollcast.wire.versions.records import PREVIOUS_ID, Manifest, VerifiedVersion, parse_announcement

FIX = "restore the run folder, or start the run anew in an empty one"

_COPY_BYTES = 8 << 20


class VersionFiles:
    """The files of a folder. Its methods block, and raise OSError where the disk refuses unless they say otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._invertible: dict[Version, bool] = {}
        self._bases: dict[Version, Version | None] = {}  # where the delta of a version starts; a record never changes

    # ------------------------------------------------------------ what is there

    def versions(self) -> list[Version]:
        """Return every complete version, oldest first."""
        return self._named("*.version")

    def states(self) -> set[Version]:
        """Return the versions whose raw state is on disk."""
        return set(self._named("*.state"))

    def deltas(self) -> set[Version]:
        """Return the versions whose delta from the version before is on disk."""
        return set(self._named(f"*.delta{PREVIOUS_ID}"))

    def lineage(self) -> Lineage:
        """Return how versions follow from each other by the deltas on disk.

        Raises:
            CheckpointError: a record is damaged.
        """
        bases = {version: self._base_of(version) for version in self.deltas()}
        known = {version: base for version, base in bases.items() if base is not None}
        return Lineage(known, self._is_invertible)

    def signed(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version; None if it is not kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return _read_signed(self._path(version, "version"), version)

    def record(self, version: Version) -> VerifiedVersion | None:
        """Return record and manifests of a version, also if its bytes were removed; None if it was never kept.

        Raises:
            CheckpointError: the file is damaged.
        """
        return self.signed(version) or _read_signed(self._path(version, "record"), version)

    def map_state(self, version: Version) -> memoryview:
        """Return the raw state of a version, mapped and unverified.

        Raises:
            CheckpointError: it cannot be read.
        """
        try:
            return map_file(self._path(version, "state"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read version {version}", cause=str(error), fix=FIX) from None

    def delta(self, version: Version, manifest: Manifest) -> bytes:
        """Return the delta of a version that a manifest describes.

        Raises:
            CheckpointError: the delta is not kept, or its bytes are not the signed ones.
        """
        try:
            data = self._path(version, f"delta{manifest.encoding_id}").read_bytes()
            manifest.check_chunk_list(chunk_list(data, manifest.chunk_size_bytes))
        except (OSError, MalformedMessage) as error:
            raise CheckpointError(f"cannot read a delta of version {version}", cause=str(error), fix=FIX) from None
        return data

    def delta_bytes(self, version: Version) -> int:
        """Return the size of the delta from the version before; 0 if it was removed."""
        try:
            return self._path(version, f"delta{PREVIOUS_ID}").stat().st_size
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------ writing

    def temporary(self, version: Version, number: int) -> Path:
        """Return the name of a state that is being written; it counts for nothing after a restart."""
        return self.folder / f".{version:012d}.state.{number}.{os.getpid()}.tmp"

    def move_state(self, written: Path, version: Version) -> None:
        """Make a written file durable as the raw state of a version."""
        descriptor = os.open(written, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._rename(written, self._path(version, "state"))

    def write_state(self, version: Version, state: BytesLike, *, number: int) -> None:
        """Write the raw state of a version durably.

        It is written in parts, each durable before the next, so that what must be durable meanwhile need not wait long.
        """
        temporary, view = self.temporary(version, number), memoryview(state).cast("B")
        try:
            with temporary.open("wb", buffering=0) as file:
                for start in range(0, len(view), _COPY_BYTES):
                    part = view[start : start + _COPY_BYTES]
                    while part:
                        part = part[file.write(part) :]
                    os.fsync(file.fileno())
            self._rename(temporary, self._path(version, "state"))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def write_delta(self, version: Version, encoding_id: EncodingId, delta: BytesLike) -> None:
        """Write a delta of a version durably."""
        path = self._path(version, f"delta{encoding_id}")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(delta)
                file.flush()
                os.fsync(file.fileno())
            self._rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._invertible.pop(version, None)

    def write_announcement(self, signed: VerifiedVersion) -> None:
        """Write the announcement durably, by which the version exists."""
        write_atomically(self._path(signed.version, "version"), signed.announcement.SerializeToString())

    @staticmethod
    def _rename(written: Path, path: Path) -> None:
        """Give a durable file its name, so that the name never refers to an incomplete file."""
        written.rename(path)
        kill_point("version_renamed")
        fsync_folder(path.parent)
        kill_point("version_durable")

    # ------------------------------------------------------------ removing

    def keep_record_only(self, version: Version) -> None:
        """Let a version no longer be complete; its record stays. Its bytes are removed by ``remove_bytes``."""
        self._path(version, "version").rename(self._path(version, "record"))

    def remove_bytes(self, version: Version, *, state: bool, previous: bool, others: bool) -> None:
        """Remove the raw state, the delta from the version before, and the other deltas of a version."""
        if state:
            self._path(version, "state").unlink(missing_ok=True)
        for path in self.folder.glob(f"{version:012d}.delta*"):
            if previous if path.suffix == f".delta{PREVIOUS_ID}" else others:
                path.unlink(missing_ok=True)

    def remove_records(self, before: int, needed: set[Version]) -> None:
        """Remove the records of versions before a step that are not complete, except needed ones."""
        for version in self._named("*.record"):
            if version < before and version not in needed:
                self._path(version, "record").unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove files that a killed process left unfinished."""
        for path in (*self.folder.glob("*.state"), *self.folder.glob("*.delta*")):
            if not any(path.with_suffix(suffix).exists() for suffix in (".version", ".record")):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):
            if f".{os.getpid()}." not in path.name:
                path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Make renames and removals durable."""
        fsync_folder(self.folder)

    def with_bytes(self) -> set[Version]:
        """Return the versions of which a state or a delta is on disk."""
        return {*self._named("*.state"), *self._named("*.delta*")}

    # ------------------------------------------------------------ inside

    def _named(self, pattern: str) -> list[Version]:
        return sorted(Version(int(path.stem)) for path in self.folder.glob(pattern) if path.stem.isdigit())

    def _base_of(self, version: Version) -> Version | None:
        if version not in self._bases:
            signed = self.record(version)
            if signed is None:
                return None  # its announcement is not written yet
            manifest = signed.manifest(PREVIOUS_ID)
            self._bases[version] = None if manifest is None else manifest.base_version
        return self._bases[version]

    def _is_invertible(self, version: Version) -> bool:
        if version not in self._invertible:
            try:
                self._invertible[version] = is_invertible(self._path(version, f"delta{PREVIOUS_ID}").read_bytes())
            except OSError:
                return False  # removed meanwhile
        return self._invertible[version]

    def _path(self, version: Version, suffix: str) -> Path:
        return self.folder / f"{version:012d}.{suffix}"


def _read_signed(path: Path, version: Version) -> VerifiedVersion | None:
    try:
        return parse_announcement(pb.VersionAnnouncement.FromString(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, DecodeError, MalformedMessage) as error:
        raise CheckpointError(f"cannot read the record of version {version}", cause=str(error), fix=FIX) from None
