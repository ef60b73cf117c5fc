"""Give the learner of a restored run a new key, where the backup left the old one out, and sign its versions with it.

Only runs of `rollcast up` keep the learner's key in the coordinator's run folder. The learner, the coordinator and
every peer refuse versions that another key signed. What is signed stays the same, so records and manifests still refer
to each other; the backup's hashes vouch for them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError

from coordinator.stores.sqlite import store_error
from rollcast.runtime.errors import BackupError
from rollcast.runtime.run_folder import RunFolder, write_atomically
from rollcast.wire.identity.identity import Identity
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import sign_again

_ANNOUNCEMENTS = ("*.version", "*.record")  # files of learner/publishing/version_files.py
_TRIGGER = "versions_keep"  # which refuses every change of a version


def replace_learner_key(run: RunFolder) -> None:
    """Make a key for the learner, and sign every version on disk and in the ledger again.

    Raises:
        BackupError: a version cannot be read.
        StoreError: the ledger is damaged.
        OSError: a file cannot be written.
    """
    identity = Identity.load_or_create(run.learner_key)
    for pattern in _ANNOUNCEMENTS:
        for path in sorted(run.versions.glob(pattern)):
            write_atomically(path, _signed(path.read_bytes(), identity, path))
    try:
        with closing(sqlite3.connect(run.ledger)) as connection, _changeable_versions(connection):
            places = connection.execute("SELECT epoch, version, announcement FROM versions").fetchall()
            for epoch, version, announcement in places:
                connection.execute(
                    "UPDATE versions SET announcement = ? WHERE epoch = ? AND version = ?",
                    (_signed(announcement, identity, run.ledger), epoch, version),
                )
    except sqlite3.Error as error:
        raise store_error(run.ledger, error) from None


@contextmanager
def _changeable_versions(connection: sqlite3.Connection) -> Iterator[None]:
    """Let versions be changed in one transaction, without the trigger that refuses it."""
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (_TRIGGER,)).fetchone()
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"DROP TRIGGER {_TRIGGER}")
        yield
        connection.execute(sql)


def _signed(announcement: bytes, identity: Identity, where: Path) -> bytes:
    try:
        return sign_again(pb.VersionAnnouncement.FromString(announcement), identity).SerializeToString()
    except DecodeError as error:
        raise BackupError(f"a version in {where} cannot be read", cause=str(error), fix="use another backup") from None
