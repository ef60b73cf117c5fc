"""Publish finished encodings, in the store's layout, in a folder for a web server or an object store.

    folder/{version}/{encoding_id}.data, {encoding_id}.list, announcement
    folder/.making/                            incomplete, never to be served

A file appears complete or not at all, and before those that lead a reader to it: data, then list, then announcement.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from peer.config import MirrorConfig
from rollcast.runtime.errors import MalformedMessage, StoreError
from rollcast.runtime.run_folder import fsync_folder
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import VerifiedVersion, parse_announcement
from rollcast.wire.versions.stored_encoding import StoredEncoding, store_error

log = structlog.get_logger()

_ANNOUNCEMENT = "announcement"
_MAKING = ".making"
_VERSION_NAME = re.compile(r"0|[1-9][0-9]{0,18}")
# Errors of link(2) if the folder cannot share the store's files; they are copied then.
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class MirrorFolder:
    """The folder that one process publishes to. All calls block on the disk, for long if they copy: use one thread.

    Args:
        folder: the folder; it is created if it is missing.
        store_folder: the folder of the ChunkStore whose encodings are published.
        keep_versions: the number of newest versions that stay; the one published last always does, and the bases of
            adapters that stay.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path, store_folder: Path, keep_versions: int) -> None:
        self._folder = folder
        self._store_folder = store_folder
        self._keep_versions = keep_versions
        self._making = folder / _MAKING
        try:
            shutil.rmtree(self._making, ignore_errors=True)  # left by a process that was killed
            self._making.mkdir(parents=True)
        except OSError as error:
            raise store_error(folder, error) from None

    def has(self, version: Version) -> bool:
        """Return whether a version is in the folder."""
        return (self._folder / str(version) / _ANNOUNCEMENT).exists()

    def publish(self, stored: StoredEncoding) -> None:
        """Publish a finished encoding, as a hard link if the file system allows it; then apply retention.

        It may be called again. A version of the same number with another record is removed first.

        Raises:
            StoreError: the encoding is not finished or has no chunk list, or the disk refuses.
        """
        if not stored.finished:
            raise StoreError(f"{stored!r} is not finished and cannot be published")
        announcement = stored.verified.announcement.SerializeToString(deterministic=True)
        hashes = stored.chunk_list()
        name = str(stored.version)
        version = self._folder / name
        try:
            with stored.reader():
                if version.exists() and not _is_of(version, stored):
                    self._remove(version)
                version.mkdir(exist_ok=True)
                data, chunk_list = version / f"{stored.encoding_id}.data", version / f"{stored.encoding_id}.list"
                if not chunk_list.exists():
                    self._place_data(self._store_folder / name / data.name, data)
            self._place(hashes, chunk_list)
            self._place(announcement, version / _ANNOUNCEMENT)
            fsync_folder(version)
            fsync_folder(self._folder)
            self._prune(stored.version)
        except OSError as error:
            raise store_error(self._folder, error) from None
        log.info("published to the mirror folder", version=stored.version, encoding=stored.encoding_id)

    # ------------------------------------------------------------ inside

    def _place_data(self, source: Path, target: Path) -> None:
        made = self._making / target.name
        made.unlink(missing_ok=True)
        try:
            os.link(source, made)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            shutil.copyfile(source, made)
            _fsync(made)
        os.replace(made, target)

    def _place(self, content: bytes, target: Path) -> None:
        made = self._making / target.name
        made.write_bytes(content)
        _fsync(made)
        os.replace(made, target)

    def _prune(self, published: Version) -> None:
        there = sorted(int(path.name) for path in self._folder.iterdir() if _VERSION_NAME.fullmatch(path.name))
        kept = {*there[-self._keep_versions :], int(published)}
        kept |= {base for version in kept if (base := self._base_of(version)) is not None}
        for version in there:
            # A folder without an announcement was left by a process that was killed.
            if version not in kept or not (self._folder / str(version) / _ANNOUNCEMENT).exists():
                self._remove(self._folder / str(version))

    def _base_of(self, version: int) -> int | None:
        verified = _announced(self._folder / str(version))
        return None if verified is None or verified.base is None else verified.base.version

    def _remove(self, version: Path) -> None:
        """Remove a version: rename it first, so that no reader sees a part of it, then delete its files."""
        gone = self._making / version.name
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(version, gone)
        shutil.rmtree(gone)


def _announced(version: Path) -> VerifiedVersion | None:
    """Return what the announcement in a version's folder says; None if there is no complete one."""
    try:
        return parse_announcement(pb.VersionAnnouncement.FromString((version / _ANNOUNCEMENT).read_bytes()))
    except (FileNotFoundError, DecodeError, MalformedMessage):
        return None


def _is_of(version: Path, stored: StoredEncoding) -> bool:
    """Return whether a version's folder has the same record and chunk list; an incomplete one has not."""
    there = _announced(version)
    if there is None:
        return False
    if there.record_hash != stored.verified.record_hash:
        return False
    chunk_list = version / f"{stored.encoding_id}.list"
    return not chunk_list.exists() or chunk_list.read_bytes() == stored.chunk_list()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mirror_folder_of(config: MirrorConfig, store: ChunkStore) -> MirrorFolder | None:
    """Return the configured folder; None if there is none."""
    return None if config.folder is None else MirrorFolder(config.folder, store.folder, config.keep_versions)
