"""Test announcements, lists, chunks and the store between links and core; the test plays the core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import AbandonVersion, AnnounceHeld, BeginStore, FinishVersion, ListChunks, Verify
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import (
    AnnouncementReceived,
    BroadcastStarted,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkVerified,
    EncodingKnown,
    EncodingUnwanted,
    Event,
    KeyframeMade,
    LinkId,
    StoreReady,
    VersionFinished,
    VersionRestored,
    VersionsRemoved,
)
from peer.relay.versions import RelayVersions
from rollcast.runtime.errors import BadSignature, MalformedMessage, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex, EncodingId, StripeId, Version
from rollcast.wire.links.frames import NO_STRIPE, ChunkFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import blake3_hash
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, VerifiedVersion, verify_announcement
from rollcast.wire.versions.stored_encoding import StoredEncoding
from tests.peer.relay.relay_steps import key_of
from tests.peer.versions import CHUNK_BYTES, CHUNKS, LEARNER, RUN_ID, Published

FIRST = Published(RUN_ID, LEARNER, 1)
SECOND = Published(RUN_ID, LEARNER, 2, base=FIRST)
KEY, STEP = key_of(1), key_of(2, PREVIOUS_ID)
STEP_CHUNKS = len(SECOND.chunk_lists[PREVIOUS_ID]) // 32
LINK, LEARNERS = LinkId(1), LinkId(7)
STRIPE = StripeId(4)


class Setup:
    def __init__(self, folder: Path, role: str) -> None:
        self.store = ChunkStore(folder / "store", keep_versions=2)
        self.told: list[Event] = []
        self.spoken_of: list[AnnouncementReceived] = []
        self.posted: list[tuple[LinkId, pb.LinkMessage]] = []
        self.completed: list[Version] = []
        self.progress: dict[EncodingKey, tuple[int, int]] = {}
        self.spared: set[EncodingKey] = set()
        self.versions = RelayVersions(
            self.store,
            role,
            verify=lambda one: verify_announcement(one, run_id=RUN_ID, learner_public_key=LEARNER.public_key),
            handle=self._handle,
            post=lambda link, message: self.posted.append((link, message)),
            progress=lambda key: self.progress.get(key, (0, 0)),
            spared=lambda: frozenset(self.spared),
            on_complete=self._on_complete,
        )
        self._seen = 0
        self._changed = asyncio.Event()

    def _handle(self, event: Event) -> None:
        if isinstance(event, AnnouncementReceived):
            self.spoken_of.append(event)
            return
        self.told.append(event)
        self._changed.set()

    def _on_complete(self, verified: VerifiedVersion, stored: StoredEncoding) -> None:
        assert stored.state_held
        self.completed.append(verified.version)

    def news(self) -> list[Event]:
        """Return the core's events since the last call."""
        news, self._seen = self.told[self._seen :], len(self.told)
        return news

    async def next(self, count: int = 1) -> list[Event]:
        async with asyncio.timeout(5.0):
            while len(self.told) - self._seen < count:
                self._changed.clear()
                await self._changed.wait()
        return self.news()

    def announce(self, published: Published, *, announced: bool = True, learner: LinkId | None = None) -> list[Event]:
        self.versions.add_announcement(
            published.announcement, announced=announced, link=learner, learner=learner is not None
        )
        return self.news()

    def list_comes(self, published: Published, encoding_id: EncodingId = KEYFRAME_ID) -> list[Event]:
        key = EncodingKey(published.version, encoding_id)
        self.versions.list_received(LINK, key, published.chunk_lists[encoding_id])
        return self.news()

    def chunk_comes(self, published: Published, index: int, encoding_id: EncodingId = KEYFRAME_ID) -> list[Event]:
        """Let a chunk arrive; if the core is asked about it, verify it as the core would."""
        payload = memoryview(published.chunk(index, encoding_id))
        frame = ChunkFrame(published.version, encoding_id, ChunkIndex(index), STRIPE, payload)
        self.versions.chunk_arrived(LINK, frame, 0.0)
        return self.news()

    async def receive(self, published: Published, encoding_id: EncodingId = KEYFRAME_ID) -> list[Event]:
        """Receive a whole encoding, from the list to the disk."""
        key = EncodingKey(published.version, encoding_id)
        self.list_comes(published, encoding_id)
        self.versions.carry_out(BeginStore(key))
        await self.next()
        manifest = published.verified.manifest(encoding_id)
        assert manifest is not None
        for index in range(manifest.chunk_count):
            self.versions.worker.write(key, ChunkIndex(index), published.chunk(index, encoding_id))
        self.versions.carry_out(FinishVersion(key))
        assert await self.next() == [VersionFinished(key)]
        self.versions.carry_out(AnnounceHeld(key))
        return self.news()


@asynccontextmanager
async def working(folder: Path, role: str = "peer", *, restore: bool = False) -> AsyncIterator[Setup]:
    setup = Setup(folder, role)
    if restore:
        setup.versions.restore()
    running = asyncio.ensure_future(setup.versions.worker.run())
    try:
        yield setup
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        setup.versions.worker.close()
        setup.store.close()


def put(folder: Path, *stored: tuple[Published, EncodingId]) -> None:
    """Store a version as an earlier process would have."""
    store = ChunkStore(folder / "store", keep_versions=2)
    for published, encoding_id in stored:
        published.put(store, encoding_id)
    store.close()


def known(
    key: EncodingKey, chunks: int, *, listed: bool = False, holder: LinkId | None = None, pushed: bool = True
) -> EncodingKnown:
    announced = holder is None
    return EncodingKnown(key, chunks, CHUNK_BYTES, announced, listed, holder, pushed)


def finished(setup: Setup) -> list[tuple[int, int]]:
    return [(one.version, one.encoding_id) for one in setup.store.finished()]


# ---------------------------------------------------------------- what comes before the announcement


def ahead(published: Published, *indices: int, change: bytes = b"") -> list[ChunkFrame]:
    """Return chunks as the learner sends them before it has signed the version."""
    payloads = {index: memoryview(change or published.chunk(index)) for index in indices}
    return [
        ChunkFrame(published.version, KEYFRAME_ID, ChunkIndex(index), NO_STRIPE, payload)
        for index, payload in payloads.items()
    ]


async def test_the_store_begins_with_what_the_learner_sent_ahead(tmp_path: Path) -> None:
    async with working(tmp_path, "origin") as setup:
        for frame in ahead(FIRST, 0, 1, 2):
            assert setup.versions.draft_arrived(frame, 0.0) == ""
            assert setup.versions.chunk(KEY, frame.index) is None, "it is served to no peer"
        assert setup.announce(FIRST, announced=False, learner=LEARNERS) == [known(KEY, CHUNKS, holder=LEARNERS)]
        setup.list_comes(FIRST)
        setup.versions.carry_out(BeginStore(KEY))
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS, range(3)).bitmap)]
        assert not setup.store.draft_path.exists()


async def test_what_was_sent_ahead_counts_for_nothing_if_other_bytes_are_signed(tmp_path: Path) -> None:
    async with working(tmp_path, "origin") as setup:
        (frame,) = ahead(FIRST, 0, change=bytes(CHUNK_BYTES))
        setup.versions.draft_arrived(frame, 0.0)
        setup.announce(FIRST, announced=False, learner=LEARNERS)
        setup.list_comes(FIRST)
        setup.versions.carry_out(BeginStore(KEY))
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS).bitmap)]
        assert not setup.store.draft_path.exists()


async def test_what_is_not_announced_is_deleted(tmp_path: Path) -> None:
    async with working(tmp_path, "origin") as setup:
        for frame in ahead(FIRST, 0, 1):
            setup.versions.draft_arrived(frame, 0.0)
        assert setup.versions.draft_arrived(ahead(FIRST, 3)[0], 0.0) != "", "the link is closed"
        setup.versions.draft_arrived(ahead(FIRST, 0)[0], 0.0)
        setup.versions.tick(1000.0)
        assert setup.versions.draft_arrived(ahead(FIRST, 1)[0], 1000.0) == ""
        setup.announce(SECOND)
        await setup.receive(SECOND)
        assert not setup.store.draft_path.exists()
        assert setup.completed == [2]


# ---------------------------------------------------------------- announcements and lists


async def test_a_version_from_announcement_and_list_to_the_disk(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        assert setup.announce(FIRST) == [known(KEY, CHUNKS)]
        assert setup.list_comes(FIRST) == [ChunkListReceived(LINK, KEY, True)]
        setup.versions.carry_out(BeginStore(KEY))
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS).bitmap)]
        assert setup.chunk_comes(FIRST, 3) == [ChunkArrived(LINK, KEY, ChunkIndex(3), STRIPE, CHUNK_BYTES)]
        assert await setup.receive(FIRST) == []
        assert setup.completed == [1]
        assert setup.versions.chunk_list(KEY) == FIRST.chunk_lists[KEYFRAME_ID]
        assert setup.versions.announcement(FIRST.version) == FIRST.announcement
        assert setup.versions.known(2) is None


async def test_the_next_version_is_computed_from_its_delta(tmp_path: Path) -> None:
    put(tmp_path, (FIRST, KEYFRAME_ID))
    async with working(tmp_path, restore=True) as setup:
        assert setup.news() == [VersionRestored(KEY, CHUNKS, CHUNK_BYTES)]
        assert setup.announce(SECOND) == [known(STEP, STEP_CHUNKS)]
        assert setup.store.announced == 2, "its delta may be applied while it arrives"
        await setup.receive(SECOND, PREVIOUS_ID)
        assert await setup.next() == [KeyframeMade(key_of(2))]
        assert setup.completed == [2]
        setup.versions.carry_out(ListChunks(key_of(2)))
        async with asyncio.timeout(0.9):  # sooner than by itself
            assert await setup.next() == [VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES)]
        assert setup.versions.delta_bytes_saved == len(SECOND.state) - len(SECOND.encodings[PREVIOUS_ID])


async def test_a_delta_that_leads_elsewhere_costs_a_keyframe(tmp_path: Path) -> None:
    put(tmp_path, (FIRST, KEYFRAME_ID))
    broken = Published(RUN_ID, LEARNER, 2, base=FIRST, broken=True)
    async with working(tmp_path, restore=True) as setup:
        setup.announce(broken)
        await setup.receive(broken, PREVIOUS_ID)
        events = await setup.next(2)
        assert events[0] == known(key_of(2), CHUNKS, pushed=False)
        assert [type(event) for event in events[1:]] == [EncodingUnwanted]
        assert await setup.receive(broken) == []
        assert setup.completed == [2]


async def test_an_announcement_of_another_learner_or_record_is_refused(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        with pytest.raises(WrongKey):
            setup.announce(Published(RUN_ID, Identity.generate(), 1))
        setup.announce(FIRST)
        with pytest.raises(MalformedMessage, match="two records"):
            setup.announce(Published(RUN_ID, LEARNER, 1, base=Published(RUN_ID, LEARNER, 0)))
        assert setup.news() == []


async def test_the_core_gets_a_known_version_and_its_link(tmp_path: Path) -> None:
    put(tmp_path, (FIRST, KEYFRAME_ID))
    async with working(tmp_path, restore=True) as setup:
        setup.versions.add_announcement(SECOND.announcement, announced=False, link=LINK)
        assert setup.spoken_of == [AnnouncementReceived(KEY), AnnouncementReceived(STEP, LINK)]


async def test_a_known_announcement_is_not_verified_again(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        verified = setup.versions.add_announcement(FIRST.announcement, announced=False)
        assert setup.versions.add_announcement(FIRST.announcement, announced=True) is verified
        changed = pb.VersionAnnouncement()
        changed.CopyFrom(FIRST.announcement)
        changed.manifests[0].signature = bytes(64)
        with pytest.raises(BadSignature):
            setup.versions.add_announcement(changed, announced=False)


async def test_without_the_coordinator_versions_are_received_but_not_reported(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.announce(FIRST, announced=False)
        setup.versions.set_offline(True)
        assert setup.news() == [known(KEY, CHUNKS)]
        await setup.receive(FIRST)
        assert setup.completed == []
        setup.announce(FIRST)
        assert setup.completed == [1]


async def test_a_wrong_list_is_reported_and_an_unannounced_one_dropped(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        assert setup.list_comes(FIRST) == []
        setup.announce(FIRST)
        setup.versions.list_received(LINK, KEY, bytes(32 * CHUNKS))
        setup.versions.list_received(LINK, key_of(1, 5), bytes(32))
        assert setup.news() == [ChunkListReceived(LINK, KEY, False)]
        assert setup.versions.chunk_list(KEY) is None


async def test_unused_lists_are_bounded_and_never_displace_a_used_one(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        published = [Published(RUN_ID, LEARNER, version) for version in range(1, 33)]
        for one in published[1:]:
            setup.announce(one)
            setup.list_comes(one)
        setup.announce(published[0])
        assert setup.list_comes(published[0]) == [ChunkListReceived(LINK, KEY, True)]
        setup.versions.carry_out(BeginStore(KEY))
        setup.list_comes(published[5])
        assert setup.versions.chunk_list(KEY) is not None
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS).bitmap)]
        assert setup.versions.chunk_list(KEY) == published[0].chunk_lists[KEYFRAME_ID]


async def test_an_abandoned_encoding_needs_its_list_again(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.announce(FIRST)
        setup.list_comes(FIRST)
        setup.versions.carry_out(BeginStore(KEY))
        await setup.next()
        setup.versions.carry_out(AbandonVersion(KEY, "superseded"))
        assert setup.announce(FIRST) == [known(KEY, CHUNKS, listed=True)], "the store has not let go of it yet"
        setup.versions.carry_out(BeginStore(KEY))
        assert await setup.next() == [StoreReady(KEY, ChunkSet(CHUNKS).bitmap)]


# ---------------------------------------------------------------- chunks


async def test_a_list_that_the_store_is_about_to_discard_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as setup:
        leftover = SimpleNamespace(listed=True, chunk_list=lambda: FIRST.chunk_lists[KEYFRAME_ID])
        answers = iter([leftover])
        with monkeypatch.context() as discarding:
            discarding.setattr(setup.store, "get", lambda version, encoding_id=KEYFRAME_ID: next(answers, None))
            (known,) = setup.announce(FIRST)
            assert isinstance(known, EncodingKnown)
            assert known.listed
            setup.versions.carry_out(BeginStore(KEY))
        assert [event.key for event in await setup.next() if isinstance(event, StoreReady)] == [KEY]


async def test_chunks_that_overtake_their_list_wait_for_it(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        assert setup.chunk_comes(FIRST, 3) == []
        setup.announce(FIRST)
        assert setup.chunk_comes(FIRST, 5) == []
        assert setup.list_comes(FIRST) == [
            ChunkListReceived(LINK, KEY, True),
            ChunkArrived(LINK, KEY, ChunkIndex(3), STRIPE, CHUNK_BYTES),
            ChunkArrived(LINK, KEY, ChunkIndex(5), STRIPE, CHUNK_BYTES),
        ]


class Verifying(Setup):
    """Has every arriving chunk verified, as the core does."""

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if isinstance(event, ChunkArrived):
            self.versions.verify(Verify(event.link, event.key, event.index, event.stripe))


async def test_a_chunk_is_verified_while_it_arrives_and_is_in_memory_from_then_on(tmp_path: Path) -> None:
    setup = Verifying(tmp_path, "peer")
    setup.announce(FIRST)
    setup.list_comes(FIRST)
    where = (LINK, KEY, ChunkIndex(3))
    assert setup.chunk_comes(FIRST, 3) == [
        ChunkArrived(*where, STRIPE, CHUNK_BYTES),
        ChunkVerified(*where, STRIPE, CHUNK_BYTES),
    ]
    assert setup.versions.chunk(KEY, ChunkIndex(3)) == FIRST.chunk(3)
    wrong = ChunkFrame(Version(1), KEYFRAME_ID, ChunkIndex(4), STRIPE, memoryview(FIRST.chunk(3)))
    setup.versions.chunk_arrived(LINK, wrong, 0.0)
    assert setup.news()[1:] == [ChunkCorrupt(LINK, KEY, ChunkIndex(4), blake3_hash(FIRST.chunk(3)))]
    assert setup.versions.chunk(KEY, ChunkIndex(4)) is None
    setup.versions.worker.close()
    setup.store.close()


# ---------------------------------------------------------------- an origin


async def test_an_origin_acknowledges_and_then_sends_to_all(tmp_path: Path) -> None:
    async with working(tmp_path, "origin") as setup:
        assert setup.announce(FIRST, announced=False, learner=LEARNERS) == [known(KEY, CHUNKS, holder=LEARNERS)]
        await setup.receive(FIRST)
        held = pb.LinkMessage(held=pb.VersionHeld(epoch=0, version=1))
        assert setup.posted == [(LEARNERS, held)]
        assert setup.completed == []
        assert setup.announce(FIRST) == [BroadcastStarted(KEY)]
        assert setup.completed == [1]


async def test_an_origin_that_lost_the_learner_receives_from_its_next_link(tmp_path: Path) -> None:
    async with working(tmp_path, "origin") as setup:
        setup.announce(FIRST, announced=False, learner=LEARNERS)
        setup.versions.link_lost(LEARNERS)
        again = LinkId(8)
        assert setup.announce(FIRST, announced=False, learner=again) == [known(KEY, CHUNKS, holder=again)]


# ---------------------------------------------------------------- a new life


@pytest.mark.parametrize(
    "stored", [[(FIRST, KEYFRAME_ID)], [(FIRST, KEYFRAME_ID), (SECOND, PREVIOUS_ID), (SECOND, KEYFRAME_ID)]]
)
async def test_held_versions_are_offered_and_reported_once_announced(
    tmp_path: Path, stored: Sequence[tuple[Published, EncodingId]]
) -> None:
    put(tmp_path, *stored)
    async with working(tmp_path, restore=True) as setup:
        offered = [event.key for event in setup.news() if isinstance(event, VersionRestored)]
        assert [(key.version, key.encoding_id) for key in offered] == finished(setup)
        assert setup.completed == []
        newest = stored[-1][0]
        assert setup.announce(newest) == []
        assert setup.completed == [newest.version]


async def test_a_state_not_computed_yet_is_computed_after_a_restart(tmp_path: Path) -> None:
    put(tmp_path, (FIRST, KEYFRAME_ID), (SECOND, PREVIOUS_ID))
    async with working(tmp_path, restore=True) as setup:
        assert await setup.next(4) == [
            VersionRestored(KEY, CHUNKS, CHUNK_BYTES),
            VersionRestored(STEP, STEP_CHUNKS, CHUNK_BYTES),
            KeyframeMade(key_of(2)),
            VersionRestored(key_of(2), CHUNKS, CHUNK_BYTES),
        ]
        setup.announce(SECOND)
        assert setup.completed == [2]


def damage(folder: Path) -> None:
    """Change the only state on disk, and remove its chunk list."""
    (data,) = folder.rglob("0.data")
    data.write_bytes(bytes(data.stat().st_size))
    data.with_suffix(".list").unlink()


async def test_a_damaged_state_without_a_list_is_removed_and_received_again(tmp_path: Path) -> None:
    """As a copy of a state in memory is, which is listed only when it is needed."""
    put(tmp_path, (FIRST, KEYFRAME_ID))
    damage(tmp_path)
    async with working(tmp_path, restore=True) as setup:
        assert setup.news() == []
        assert finished(setup) == []
        assert setup.announce(FIRST) == [known(KEY, CHUNKS)]
        await setup.receive(FIRST)
        assert setup.completed == [1]


async def test_versions_of_another_learner_are_removed(tmp_path: Path) -> None:
    put(tmp_path, (Published(RUN_ID, Identity.generate(), 50), KEYFRAME_ID), (FIRST, KEYFRAME_ID))
    async with working(tmp_path, restore=True) as setup:
        assert setup.news() == [VersionRestored(KEY, CHUNKS, CHUNK_BYTES)]
        assert finished(setup) == [(1, 0)]


async def test_an_encoding_without_a_source_is_replaced(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        assert setup.announce(SECOND) == [known(STEP, STEP_CHUNKS), known(key_of(2), CHUNKS, pushed=False)]
        setup.progress[key_of(2)] = (20, CHUNKS)
        third = Published(RUN_ID, LEARNER, 3, base=SECOND)
        assert known(key_of(3), CHUNKS, pushed=False) not in setup.announce(third)
        setup.progress.clear()
        setup.versions.carry_out(AbandonVersion(key_of(2), "no source has it any more", in_vain=True))
        assert setup.news() == [known(key_of(3), CHUNKS, pushed=False)]


async def test_retention_spares_keyframes_in_transfer(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        setup.spared.add(KEY)
        for version in (1, 2, 3, 4):
            published = Published(RUN_ID, LEARNER, version)
            setup.announce(published)
            await setup.receive(published)
        assert await setup.next() == [VersionsRemoved((key_of(2),))]
        assert finished(setup) == [(1, 0), (3, 0), (4, 0)]


async def test_versions_removed_by_retention_are_discarded(tmp_path: Path) -> None:
    async with working(tmp_path) as setup:
        for version in (1, 2, 3):
            published = Published(RUN_ID, LEARNER, version)
            setup.announce(published)
            await setup.receive(published)
        assert await setup.next() == [VersionsRemoved((KEY,))]
        assert setup.versions.chunk_list(KEY) is None
        assert setup.versions.chunk(KEY, ChunkIndex(0)) is None
        assert finished(setup) == [(2, 0), (3, 0)]
