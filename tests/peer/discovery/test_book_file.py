from __future__ import annotations

import stat
from pathlib import Path

from peer.discovery.book_file import BookFile
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import PeerRecord, sign_record
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb

NOW = 1_800_000_000.0


def record(run_id: str = "run-1", expires: float = NOW + 100.0) -> pb.Signed:
    identity = Identity.generate()
    return sign_record(PeerRecord(RunId(run_id), identity.peer_id, "peer", 1, ("a:1",), int(expires)), identity)


def test_what_was_written_is_read_and_what_does_not_count_is_left_out(tmp_path: Path) -> None:
    file = BookFile(tmp_path / "book.pb", RunId("run-1"))
    assert file.read(NOW) == []
    good, changed = record(), record()
    changed.signature = bytes(64)
    file.write(pb.PeerRecords(records=[record("run-2"), good, record(expires=NOW - 1), changed]))
    assert [signed for signed, _ in file.read(NOW)] == [good]
    assert stat.S_IMODE((tmp_path / "book.pb").stat().st_mode) == 0o600


def test_a_file_that_cannot_be_read_or_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "book.pb").write_bytes(b"\xff\xff\xff")
    assert BookFile(tmp_path / "book.pb", RunId("run-1")).read(NOW) == []
    nowhere = BookFile(tmp_path / "no folder" / "book.pb", RunId("run-1"))
    nowhere.write(pb.PeerRecords(records=[record()]))
    assert nowhere.read(NOW) == []
