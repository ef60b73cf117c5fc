"""Save the address book to disk, so that a peer that restarts without the coordinator finds other peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from peer.discovery.address_book import ENTRIES_MOST
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.run_folder import write_atomically
from rollcast.wire.identity.peer_record import PeerRecord, verify_record
from rollcast.wire.ids import RunId
from rollcast.wire.limits import PEER_RECORD_BYTES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

_FILE_BYTES_MAX = ENTRIES_MOST * (PEER_RECORD_BYTES_MAX + 256)


class BookFile:
    """The file of the address book. Its methods block on the disk, and never fail: all records can be learnt again."""

    def __init__(self, path: Path, run_id: RunId) -> None:
        self._path = path
        self._run_id = run_id

    def read(self, now_unix_s: float) -> list[tuple[pb.Signed, PeerRecord]]:
        """Return the saved records that are still valid and of this run."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX)
            return list(self._counting(pb.PeerRecords.FromString(data), now_unix_s))
        except FileNotFoundError:
            return []
        except (OSError, DecodeError) as error:
            log.warning("address book cannot be read", path=str(self._path), reason=str(error))
            return []

    def _counting(self, records: pb.PeerRecords, now_unix_s: float) -> Iterator[tuple[pb.Signed, PeerRecord]]:
        for signed in records.records[:ENTRIES_MOST]:
            try:
                yield signed, verify_record(signed, run_id=self._run_id, now_unix_s=now_unix_s)
            except RollcastError:
                continue  # expired, or of another run

    def write(self, records: pb.PeerRecords) -> None:
        """Replace the saved records."""
        try:
            write_atomically(self._path, records.SerializeToString(), mode=0o600)
        except OSError as error:
            log.warning("address book cannot be written", path=str(self._path), reason=str(error))
