"""Versions on disk: received chunk by chunk, visible as complete only once they are durable.

    folder/{version}/announcement          the signed announcement
    folder/{version}/{encoding}.list       chunk hashes
    folder/{version}/{encoding}.part       preallocated, partly filled
    folder/{version}/{encoding}.data       complete

Only integers of ours become names. All calls block on the disk, most of them briefly. ``begin`` (fsync, and it hashes
a partial encoding), ``finish`` (fsync) and ``verify_state`` (it hashes everything) belong in a thread.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from rollcast.runtime.errors import MalformedMessage, StoreError
from rollcast.runtime.run_folder import fsync_folder, write_atomically
from rollcast.wire.ids import Version
from rollcast.wire.limits import COUNTER_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import KEYFRAME_ID, Manifest, VerifiedVersion, parse_announcement
from rollcast.wire.stored_encoding import StoredEncoding, store_error

__all__ = ["ChunkStore", "StoredEncoding"]

log = structlog.get_logger()

_ANNOUNCEMENT = "announcement"
_VERSION_NAME = re.compile(r"0|[1-9][0-9]{0,18}")


class ChunkStore:
    """The versions that one process keeps.

    Args:
        folder: made if missing; of this store alone.
        keep_versions: complete versions that ``prune`` leaves.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path, keep_versions: int) -> None:
        self._folder = folder
        self._keep_versions = keep_versions
        self._encodings: dict[tuple[int, int], StoredEncoding] = {}
        self._beginning: set[Version] = set()  # prune leaves them alone: begin may run in another thread
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for version in self._versions_on_disk():
                self._open_version(version)
        except OSError as error:
            raise store_error(folder, error) from None

    def close(self) -> None:
        """Give all file descriptors back."""
        for encoding in list(self._encodings.values()):
            encoding.close()
        self._encodings.clear()

    def begin(self, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> StoredEncoding:
        """The encoding, ready for chunks: as it is, resumed by hashing what is on disk, or new.

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
            self._write_signed(verified, manifest, chunk_list)
            encoding = StoredEncoding(self._version_folder(manifest.version), verified, manifest, chunk_list)
            encoding.open_partial()
            self._encodings[manifest.version, manifest.encoding_id] = encoding
        finally:
            self._beginning.discard(manifest.version)
        return encoding

    def get(self, version: int, encoding_id: int = KEYFRAME_ID) -> StoredEncoding | None:
        """An encoding that is complete or was begun by this process, or None."""
        return self._encodings.get((version, encoding_id))

    def versions(self) -> list[Version]:
        """Versions with a finished encoding, ascending."""
        return sorted({encoding.version for encoding in list(self._encodings.values()) if encoding.finished})

    def prune(self) -> list[Version]:
        """Remove versions older than the newest ``keep_versions`` finished ones, except those being read.

        What an earlier process began and this one did not take up again goes too once a newer version is finished.

        Returns:
            The removed versions, ascending.

        Raises:
            StoreError: the disk refuses.
        """
        finished = self.versions()
        if not finished:
            return []
        oldest_kept = finished[-self._keep_versions] if len(finished) >= self._keep_versions else Version(0)
        open_here = self._beginning | {encoding.version for encoding in list(self._encodings.values())}
        doomed = [
            version
            for version in self._versions_on_disk()
            if version not in self._beginning
            and (version < oldest_kept or (version < finished[-1] and version not in open_here))
        ]
        return [version for version in doomed if self.discard(version)]

    def discard(self, version: Version) -> bool:
        """Remove one version, complete or not; False when it is being read.

        Raises:
            StoreError: the disk refuses.
        """
        mine = [encoding for encoding in list(self._encodings.values()) if encoding.version == version]
        if any(encoding.readers for encoding in mine):
            return False
        for encoding in mine:
            del self._encodings[version, encoding.encoding_id]
        folder = self._version_folder(version)
        try:
            if folder.exists():
                (folder / _ANNOUNCEMENT).unlink(missing_ok=True)  # first: without it nothing here is visible
                shutil.rmtree(folder)
                fsync_folder(self._folder)
        except OSError as error:
            raise store_error(folder, error) from None
        return True

    # ------------------------------------------------------------ inside

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
            try:
                hashes = self._list_path(manifest).read_bytes()
                manifest.check_chunk_list(hashes)
            except (OSError, MalformedMessage):
                continue
            encoding = StoredEncoding(self._version_folder(version), verified, manifest, hashes)
            if encoding.open_complete():
                self._encodings[version, manifest.encoding_id] = encoding

    def _stored_version(self, version: Version) -> VerifiedVersion | None:
        """The announcement on disk, or None where there is no usable one."""
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
        """Make way: what is there under this number is another run's or cut otherwise."""
        known = self.get(manifest.version, manifest.encoding_id)
        stored = self._stored_version(manifest.version)
        is_other = stored is not None and stored.record_hash != verified.record_hash
        if (known is not None or is_other) and not self.discard(manifest.version):
            raise StoreError(f"version {manifest.version} is there with other bytes and is being read")

    def _write_signed(self, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> None:
        """Announcement and chunk list, durable before anything can be complete."""
        folder = self._version_folder(manifest.version)
        announcement = verified.announcement.SerializeToString(deterministic=True)
        try:
            if not folder.exists():
                folder.mkdir()
                fsync_folder(self._folder)
            for path, data in ((folder / _ANNOUNCEMENT, announcement), (self._list_path(manifest), chunk_list)):
                if not path.exists() or path.read_bytes() != data:
                    write_atomically(path, data)
        except OSError as error:
            raise store_error(folder, error) from None

    def _list_path(self, manifest: Manifest) -> Path:
        return self._version_folder(manifest.version) / f"{manifest.encoding_id}.list"
