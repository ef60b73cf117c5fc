"""Versions on their way from the head into a cell: which encodings are offered, and what is announced after what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from learner.publishing.origin_link import OriginLink
from learner.publishing.push import Push
from rollcast.cell.publishing import CellPublisher, held_version
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import ChunkIndex, EncodingId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, verify_announcement
from tests.peer.versions import Published

RUN = RunId("run-1")
LEARNER = Identity.generate()
FIRST = Published(RUN, LEARNER, 0)
SECOND = Published(RUN, LEARNER, 1, FIRST)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    opened = ChunkStore(tmp_path / "versions", 4, in_memory=False)
    yield opened
    opened.close()


def encodings_of(announcement: pb.VersionAnnouncement) -> list[int]:
    return [pb.Manifest.FromString(one.payload).encoding_id for one in announcement.manifests]


def test_only_encodings_that_are_held_are_offered_as_they_were_signed(store: ChunkStore) -> None:
    SECOND.put(store)
    held = held_version(store, SECOND.version)
    assert held is not None
    assert encodings_of(SECOND.announcement) == [KEYFRAME_ID, PREVIOUS_ID]
    assert encodings_of(held.announcement) == [KEYFRAME_ID]
    assert held.announcement.record == SECOND.announcement.record
    verify_announcement(held.announcement, run_id=RUN, learner_public_key=LEARNER.public_key)
    assert held.chunk_lists() == {(1, KEYFRAME_ID): SECOND.chunk_lists[KEYFRAME_ID]}
    assert held.chunk(Version(1), KEYFRAME_ID, ChunkIndex(2)) == SECOND.chunk(2)


def test_a_delta_that_is_held_is_offered_too(store: ChunkStore) -> None:
    FIRST.put(store)
    SECOND.put(store)
    SECOND.put(store, PREVIOUS_ID)
    held = held_version(store, SECOND.version)
    assert held is not None
    assert held.announcement == SECOND.announcement
    assert set(held.chunk_lists()) == {(1, KEYFRAME_ID), (1, PREVIOUS_ID)}


def test_adapters_are_offered_with_the_version_that_they_complete(store: ChunkStore) -> None:
    adapters = Published(RUN, LEARNER, 2, over=FIRST)
    adapters.put(store)
    assert held_version(store, adapters.version) is None
    FIRST.put(store)
    held = held_version(store, adapters.version)
    assert held is not None
    assert held.announcement == adapters.announcement
    assert set(held.encodings) == {(2, KEYFRAME_ID), (0, KEYFRAME_ID)}


class Cell:
    """The client of a cell's coordinator, and a link to its origin; what happens is noted in order."""

    def __init__(self, *, newest: int | None = None, epoch: int = 0) -> None:
        self.newest, self.epoch = newest, epoch
        self.happened: list[str] = []

    async def open(self) -> pb.RunInfo:
        has = self.newest is not None
        return pb.RunInfo(
            epoch=self.epoch, has_published=has, newest_published_version=self.newest or 0, origin_address="127.0.0.1:1"
        )

    async def announce(self, announcement: pb.VersionAnnouncement) -> bool:
        self.happened.append(f"announced {encodings_of(announcement)}")
        return True

    async def open_epoch(self, step: int, _common: int | None) -> pb.EpochReply:
        self.epoch += 1
        self.happened.append(f"epoch {self.epoch} at {step}")
        return pb.EpochReply(epoch=self.epoch, step=step)

    async def push(self, push: Push, _chunk: Any) -> None:
        self.happened.append(f"pushed {push.version}")

    async def close(self) -> None:
        self.happened.append("closed")


def publisher_of(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> CellPublisher:
    async def connect(*_: Any, **__: Any) -> Cell:
        return cell

    async def credentials() -> TlsCredentials:
        return TlsCredentials(b"", b"", b"")

    monkeypatch.setattr(OriginLink, "connect", connect)
    return CellPublisher(cast(Any, cell), credentials, Random(0))


async def test_a_version_is_durable_at_the_origin_before_it_is_announced(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    SECOND.put(store)
    cell = Cell(newest=0)
    publisher = publisher_of(cell, monkeypatch)
    await publisher.publish(store, SECOND.version)
    assert cell.happened == ["pushed 1", "announced [0]"]


async def test_a_version_that_the_cell_has_or_that_was_replaced_here_is_left_out(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    SECOND.put(store)
    cell = Cell(newest=1)
    await publisher_of(cell, monkeypatch).publish(store, SECOND.version)
    await publisher_of(Cell(), monkeypatch).publish(store, Version(9))
    assert cell.happened == []


async def test_a_new_epoch_is_opened_in_the_cell_before_its_first_version(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    FIRST.put(store)
    cell = Cell(epoch=0)
    publisher = publisher_of(cell, monkeypatch)
    held = held_version(store, FIRST.version)
    assert held is not None
    await publisher._open_epoch(pb.RunInfo(epoch=0), _in_epoch(held.verified, 1))
    assert cell.happened == ["epoch 1 at 0"]
    assert EncodingId(0) == KEYFRAME_ID


def _in_epoch(verified: Any, epoch: int) -> Any:
    from dataclasses import replace

    return replace(verified, record=replace(verified.record, epoch=epoch))
