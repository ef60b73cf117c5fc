"""Test encodings from their announcement to the disk, with honest and dishonest peers."""

from __future__ import annotations

from typing import Any

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import (
    AbandonVersion,
    Accuse,
    Action,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    FinishVersion,
    GiveUp,
    SendCancel,
    SendChunkList,
    SendHave,
    SendWant,
    Verify,
)
from peer.relay.core.state.events import (
    AnnouncementReceived,
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkVerified,
    EncodingKnown,
    EncodingUnwanted,
    HaveReceived,
    LinkId,
    StoreFailed,
    StoreReady,
    VersionFinished,
    VersionRestored,
    VersionsRemoved,
    WantReceived,
)
from rollcast.wire.ids import ChunkIndex, StripeId, Version
from rollcast.wire.links.frames import NO_STRIPE
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan

ORIGIN, A, OTHER = 1, 2, 3  # links
STRIPE = StripeId(5)
FULL = "disk full"


def peer(chunks: int = 3, **settings: Any) -> Steps:
    """Return a peer that is receiving, linked to the origin and another peer."""
    steps = linked(**settings)
    steps.receive(chunks)
    return steps


def linked(role: str = "peer", **settings: Any) -> Steps:
    steps = Steps(role, **settings)
    steps.tell(plan(neighbour("origin", "origin"), neighbour("a"), parents=("origin",)))
    steps.up(ORIGIN, "origin", "origin")
    steps.up(A, "a")
    return steps


def known(key: EncodingKey = KEY, chunks: int = 3, *, announced: bool = True, listed: bool = False) -> EncodingKnown:
    return EncodingKnown(key, chunks, CHUNK_BYTES, announced, listed)


def arrived(link: int, index: int, key: EncodingKey = KEY, stripe: StripeId = STRIPE) -> ChunkArrived:
    return ChunkArrived(LinkId(link), key, ChunkIndex(index), stripe, CHUNK_BYTES)


def held(link: int, chunks: int = 3, key: EncodingKey = KEY) -> SendHave:
    return SendHave(LinkId(link), key, chunks, b"", True)


# ---------------------------------------------------------------- from the announcement to the disk


def test_an_encoding_from_its_announcement_to_the_disk() -> None:
    steps = linked()
    assert steps.tell(known(announced=False)) == []
    assert steps.list_comes(ORIGIN) == [BeginStore(KEY)]
    assert steps.tell(StoreReady(KEY, bitmap(3))) == []
    assert steps.chunk(ORIGIN, 0) == []
    assert steps.tell(known()) == []
    assert steps.chunk(ORIGIN, 1) == []
    assert steps.chunk(A, 2) == [FinishVersion(KEY)]
    assert steps.tell(VersionFinished(KEY)) == [AnnounceHeld(KEY), held(ORIGIN), held(A)]
    counters = steps.state.counters
    assert (counters.chunk_bytes_from_origin, counters.chunk_bytes_from_peers) == (2 * CHUNK_BYTES, CHUNK_BYTES)


def test_chunks_that_come_before_the_store_is_open_count() -> None:
    steps = linked()
    steps.tell(known(listed=True))
    assert steps.chunk(ORIGIN, 0) == []
    assert steps.chunk(ORIGIN, 1) == []
    assert steps.tell(StoreReady(KEY, bitmap(3, 1, 2))) == [FinishVersion(KEY)]


def test_an_encoding_already_on_the_disk_is_only_checked() -> None:
    steps = linked()
    assert steps.tell(known(listed=True)) == [BeginStore(KEY)]
    assert steps.tell(StoreReady(KEY, bitmap(3, 0, 1, 2))) == [FinishVersion(KEY)]


def test_repeated_events_change_nothing() -> None:
    steps = linked()
    assert steps.tell(known(listed=True), known(listed=True), known(announced=False)) == [BeginStore(KEY)]
    assert steps.list_comes(A) == []
    steps.tell(StoreReady(KEY, bitmap(3)), StoreReady(KEY, bitmap(3, 0, 1, 2)))
    assert steps.state.encodings[KEY].have.count == 0
    assert steps.state.encodings[KEY].announced


def test_encodings_in_flight_are_bounded_and_the_oldest_go() -> None:
    steps = linked()
    versions = list(range(1, 12))
    abandoned = [one for version in versions for one in steps.tell(known(key_of(version), listed=True))]
    gone = [one.key.version for one in abandoned if isinstance(one, AbandonVersion)]
    assert gone == [1, 2, 3]
    assert steps.tell(known(key_of(1))) == [AbandonVersion(key_of(1), "too many encodings in flight")]


def test_a_partial_keyframe_is_not_abandoned_for_deltas_that_build_on_it() -> None:
    steps = linked()
    steps.receive(3)
    steps.chunk(A, 1)
    deltas = [key_of(version, 1) for version in range(2, 12)]
    abandoned = [one for key in deltas for one in steps.tell(known(key, listed=True))]
    assert [one.key for one in abandoned if isinstance(one, AbandonVersion)] == deltas[:3]
    assert KEY in steps.state.encodings


def test_an_encoding_that_is_not_pushed_is_requested_at_once() -> None:
    steps = linked()
    asked = EncodingKnown(KEY, 3, CHUNK_BYTES, pushed=False)
    assert SendWant(LinkId(ORIGIN), KEY, True) in steps.tell(asked)
    steps.list_comes(ORIGIN)
    assert SendWant(LinkId(A), KEY, False) in steps.tell(StoreReady(KEY, bitmap(3)))
    pushed = linked()
    assert pushed.tell(known(listed=True), StoreReady(KEY, bitmap(3))) == [BeginStore(KEY)]


# ---------------------------------------------------------------- in vain


def refused(role: str = "peer") -> Steps:
    """Return a peer that has half an encoding, which all refuse, and knows of a newer version."""
    steps = linked(role)
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, listed=True, pushed=False), StoreReady(KEY, bitmap(3)))
    steps.chunk(A, 1)
    steps.tell(*(CancelReceived(LinkId(link), KEY, "no longer kept") for link in (ORIGIN, A)))
    steps.tell(AnnouncementReceived(key_of(9, 1)))
    return steps


def given_up(actions: list[Action]) -> list[AbandonVersion]:
    return [one for one in actions if isinstance(one, AbandonVersion)]


def cancelled(steps: Steps, seconds: float) -> list[Action]:
    """Let time pass while every peer that is asked refuses; return all actions."""
    actions: list[Action] = []
    for _ in range(round(seconds / 0.05)):
        actions += (news := steps.wait(0.05))
        for one in news:
            if isinstance(one, SendWant):
                actions += steps.tell(CancelReceived(one.link, one.key, "not held here"))
    return actions


def test_an_encoding_without_a_source_is_abandoned_for_a_newer_version() -> None:
    steps = refused()
    assert given_up(cancelled(steps, 9.5)) == []
    assert given_up(cancelled(steps, 1.0)) == [AbandonVersion(KEY, "no source has it any more", in_vain=True)]


def test_a_keyframe_that_all_sources_refuse_is_abandoned_at_once_if_none_of_it_came() -> None:
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, pushed=False), AnnouncementReceived(key_of(9, 1)))
    steps.tell(CancelReceived(LinkId(ORIGIN), KEY, "no longer kept"))
    assert given_up(steps.wait(0.05)) == [], "the other one was asked"
    steps.tell(CancelReceived(LinkId(A), KEY, "no longer kept"))
    assert given_up(steps.wait(0.05)) == [AbandonVersion(KEY, "no source has it any more", in_vain=True)]


def test_two_peers_without_a_keyframe_do_not_wait_long_for_each_other() -> None:
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, listed=True, pushed=False), StoreReady(KEY, bitmap(3)))
    steps.tell(CancelReceived(LinkId(ORIGIN), KEY, "no longer kept"), AnnouncementReceived(key_of(9, 1)))
    steps.tell(HaveReceived(LinkId(A), KEY, 3, bitmap(3), False))
    assert given_up(steps.wait(2.5)) == []
    assert given_up(steps.wait(1.0)) == [AbandonVersion(KEY, "no source has it any more", in_vain=True)]


def test_the_base_of_adapters_is_never_abandoned() -> None:
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, pushed=False, is_base=True), AnnouncementReceived(key_of(9, 1)))
    assert given_up(cancelled(steps, 20.0)) == [], "no newer version can take its place"
    for version in range(10, 30):
        steps.tell(known(key_of(version), listed=True))
    assert KEY in steps.state.encodings


def test_a_delta_that_may_still_be_pushed_is_abandoned_later() -> None:
    steps, delta = linked(), key_of(1, 1)
    steps.tell(known(delta), AnnouncementReceived(key_of(9, 1)))
    assert given_up(cancelled(steps, 9.5)) == []
    assert [one.key for one in given_up(cancelled(steps, 1.0))] == [delta]


def test_chunks_that_a_source_still_claims_are_waited_for() -> None:
    steps = refused()
    steps.wait(3.5)
    steps.tell(HaveReceived(LinkId(A), KEY, 3, b"", True))
    assert given_up(steps.ticks(15.0)) == []


def test_a_source_that_did_not_answer_yet_is_waited_for() -> None:
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, pushed=False), AnnouncementReceived(key_of(9, 1)))
    assert given_up(steps.ticks(15.0)) == []


def test_the_newest_version_is_not_abandoned() -> None:
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, pushed=False), AnnouncementReceived(KEY))
    assert given_up(cancelled(steps, 15.0)) == []


def test_an_origin_waits_for_the_learner() -> None:
    assert given_up(cancelled(refused("origin"), 15.0)) == []


# ---------------------------------------------------------------- states that were made


def test_a_state_computed_from_a_delta_is_no_longer_received_and_can_be_served() -> None:
    steps = linked()
    steps.tell(plan(neighbour("a"), plan_id=2))
    steps.receive(3)
    assert steps.state.encodings[KEY].sources.keys() == {A}
    steps.tell(WantReceived(LinkId(OTHER), KEY), WantReceived(LinkId(ORIGIN), KEY))
    assert steps.tell(VersionRestored(KEY, 3, CHUNK_BYTES)) == [held(ORIGIN), held(A)]
    assert steps.tell(StoreReady(KEY, bitmap(3)), VersionFinished(KEY)) == []
    assert steps.chunk(A, 1) == []


def test_an_unwanted_encoding_leaves_nothing_behind() -> None:
    steps = peer()
    steps.chunk(ORIGIN, 0)
    steps.ticks(0.5)
    actions = steps.tell(EncodingUnwanted(KEY, "superseded"))
    cancels = [SendCancel(LinkId(link), KEY, "superseded") for link in (ORIGIN, A)]
    assert actions == [*cancels, AbandonVersion(KEY, "superseded")]
    assert steps.tell(EncodingUnwanted(KEY, "superseded")) == []
    assert steps.state.encodings == {}
    assert all(not link.theirs for link in steps.state.links.values())


def test_a_complete_encoding_is_kept_even_if_it_is_unwanted() -> None:
    steps = peer(1)
    assert steps.chunk(ORIGIN, 0) == [FinishVersion(KEY)]
    assert steps.tell(EncodingUnwanted(KEY, "superseded")) == []
    assert steps.tell(VersionFinished(KEY))[0] == AnnounceHeld(KEY)


# ---------------------------------------------------------------- the store fails


def test_an_encoding_that_could_not_be_stored_is_received_again_later() -> None:
    steps = peer()
    assert steps.tell(StoreFailed(KEY, FULL)) == [AbandonVersion(KEY, FULL, again=True)]
    assert str(steps.state.store_failure) == "cannot store version 1: disk full"
    assert steps.tell(StoreFailed(KEY, FULL), known(listed=True)) == [], "other chunks of it were under way"
    assert steps.ticks(14.9, 0.5) == []
    steps.ticks(0.5)
    assert steps.list_comes(ORIGIN) == [BeginStore(KEY)]
    steps.tell(StoreReady(KEY, bitmap(3)))
    for index in range(3):
        steps.chunk(ORIGIN, index)
    steps.tell(VersionFinished(KEY))
    assert steps.state.store_failure is None


def test_an_older_encoding_that_could_not_be_stored_is_received_again_too() -> None:
    """The newer encoding may build on it."""
    steps = peer()
    steps.tell(StoreFailed(KEY, FULL))
    steps.receive(3, key_of(2))
    steps.ticks(15.5, 0.5)
    assert KEY in steps.state.encodings


def test_what_failed_is_retried_as_soon_as_a_newer_encoding_was_stored() -> None:
    """The newer one may be a delta that nothing can be done with before the older ones are here."""
    steps = peer()
    steps.tell(StoreFailed(KEY, FULL))
    steps.receive(1, key_of(2))
    steps.chunk(ORIGIN, 0, key=key_of(2))
    steps.tell(VersionFinished(key_of(2)))
    assert steps.state.store_failure is None
    steps.ticks(0.05)
    assert KEY in steps.state.encodings


def test_an_announcement_that_comes_before_the_retry_is_not_forgotten() -> None:
    """Without it no source but the plan's parents would be asked, and the origin has pushed the chunks already."""
    steps = linked()
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, announced=False, listed=True), StoreFailed(KEY, FULL))
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, announced=True, listed=True, is_base=True))
    steps.ticks(15.5, 0.5)
    encoding = steps.state.encodings[KEY]
    assert (encoding.announced, encoding.is_base) == (True, True)


def test_an_unwanted_encoding_is_not_retried() -> None:
    steps = peer()
    steps.tell(StoreFailed(KEY, FULL), EncodingUnwanted(KEY, "superseded"))
    steps.ticks(16.0, 0.5)
    assert KEY not in steps.state.encodings


def test_a_removed_encoding_is_not_retried() -> None:
    steps = peer()
    steps.tell(StoreFailed(KEY, FULL), VersionsRemoved((KEY,)))
    steps.ticks(16.0, 0.5)
    assert KEY not in steps.state.encodings


def test_however_many_versions_fail_the_process_ends_only_after_an_hour() -> None:
    """The disk may be full for a while, and versions may come every second."""
    steps = peer()
    for _ in range(225):
        assert steps.tell(StoreFailed(KEY, FULL, "free some space"))[-1] == AbandonVersion(KEY, FULL, again=True)
        steps.ticks(16.0, 0.5)
    assert steps.tell(StoreFailed(KEY, FULL, "free some space"))[-1] == GiveUp(Version(1), FULL, "free some space")


def test_a_version_that_was_stored_meanwhile_lets_the_hour_begin_anew() -> None:
    steps = peer(store_give_up_s=20.0)
    steps.tell(StoreFailed(key_of(1), FULL))
    steps.ticks(19.0, 0.5)
    steps.receive(1, key_of(2))
    steps.chunk(ORIGIN, 0, key=key_of(2))
    steps.tell(VersionFinished(key_of(2)))
    steps.ticks(10.0, 0.5)
    steps.receive(1, key_of(4))
    assert steps.tell(StoreFailed(key_of(4), FULL)) == [AbandonVersion(key_of(4), FULL, again=True)]


def test_an_encoding_of_the_learner_is_not_retried_by_itself() -> None:
    steps = Steps("origin")
    steps.up(A, "learner", "learner")
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, announced=False, listed=True, holder=LinkId(A)))
    actions = steps.tell(StoreFailed(KEY, FULL))
    assert actions == [SendCancel(LinkId(A), KEY, FULL), AbandonVersion(KEY, FULL)]
    steps.ticks(16.0, 0.5)
    assert steps.state.encodings == {}
    known_again = EncodingKnown(KEY, 3, CHUNK_BYTES, announced=False, holder=LinkId(A))
    assert steps.tell(known_again) == [SendWant(LinkId(A), KEY, True)]


def test_a_learner_that_comes_back_does_not_wait_for_the_retry() -> None:
    steps = Steps("origin")
    steps.tell(EncodingKnown(KEY, 3, CHUNK_BYTES, announced=True, listed=True), StoreFailed(KEY, FULL))
    steps.up(A, "learner", "learner")
    known_again = EncodingKnown(KEY, 3, CHUNK_BYTES, announced=True, holder=LinkId(A))
    assert steps.tell(known_again) == [SendWant(LinkId(A), KEY, True)]
    steps.ticks(16.0, 0.5)
    assert steps.state.waiting_for_retry == {}


# ---------------------------------------------------------------- what comes on links


def test_bytes_that_do_not_hash_to_the_list_cost_the_sender_its_links() -> None:
    steps = peer()
    steps.up(OTHER, "a")
    why = "chunk does not match its signed hash"
    assert steps.tell(arrived(A, 1)) == [Verify(LinkId(A), KEY, ChunkIndex(1), STRIPE)]
    assert steps.tell(ChunkCorrupt(LinkId(A), KEY, ChunkIndex(1), b"what came")) == [
        Accuse(LinkId(A), neighbour("a").peer_id, KEY, ChunkIndex(1), why, b"what came"),
        CloseLink(LinkId(OTHER), why),
    ], "the first link stays open for a receipt"
    assert steps.tell(arrived(A, 2), ChunkCorrupt(LinkId(A), KEY, ChunkIndex(2))) == []
    assert steps.state.counters.chunks_rejected == 2


def test_the_sender_of_a_wrong_chunk_list_is_accused() -> None:
    steps = linked()
    steps.tell(known())
    why = "chunk list does not match its signed hash"
    expected = [Accuse(LinkId(A), neighbour("a").peer_id, KEY, ChunkIndex(0), why)]
    assert steps.list_comes(A, valid=False) == expected
    assert steps.list_comes(ORIGIN) == [BeginStore(KEY)]


def test_an_impossible_chunk_index_ends_the_link_without_an_accusation() -> None:
    steps = peer()
    assert steps.tell(arrived(A, 3)) == [CloseLink(LinkId(A), "a chunk index is out of range")]
    assert steps.tell(arrived(A, 0)) == []


def test_chunks_of_unannounced_encodings_are_dropped_and_in_the_end_close_the_link() -> None:
    steps = peer()
    for _ in range(steps.state.settings.useless_chunks_most):
        assert steps.tell(arrived(A, 0, key_of(7))) == []
    reason = "too many chunks that were not needed"
    assert steps.tell(arrived(A, 0, key_of(7))) == [CloseLink(LinkId(A), reason)]


def test_duplicates_are_counted_and_in_the_end_close_the_link() -> None:
    steps = peer()
    steps.chunk(ORIGIN, 0)
    actions: list[Action] = []
    for _ in range(steps.state.settings.useless_chunks_most + 1):
        actions += steps.tell(arrived(A, 0, stripe=NO_STRIPE))
    assert actions == [CloseLink(LinkId(A), "too many chunks that were not needed")]
    assert steps.state.counters.chunks_duplicate == steps.state.settings.useless_chunks_most + 1


def test_useful_chunks_earn_a_link_some_useless_ones() -> None:
    steps = linked()
    steps.receive(6000)
    for index in range(6000):
        steps.tell(ChunkVerified(LinkId(A), KEY, ChunkIndex(index), NO_STRIPE, CHUNK_BYTES))
    for _ in range(6000):
        assert steps.tell(arrived(A, 0, stripe=NO_STRIPE)) == []


def test_events_of_lost_links_and_encodings_do_nothing() -> None:
    steps = linked()
    for event in (
        arrived(9, 0),
        ChunkVerified(LinkId(A), KEY, ChunkIndex(0), STRIPE, CHUNK_BYTES),
        StoreReady(KEY, b""),
        VersionFinished(KEY),
        StoreFailed(KEY, FULL),
        VersionsRemoved((KEY,)),
    ):
        assert steps.tell(event) == []
    assert steps.list_comes(A) == []
    assert steps.state.encodings == {}


def test_a_list_requested_while_the_state_is_computed_is_sent_with_the_state() -> None:
    steps = linked()
    assert steps.tell(WantReceived(LinkId(A), KEY, True)) == [SendHave(LinkId(A), KEY, 0, b"", False)]
    assert steps.hold(2) == [SendChunkList(LinkId(A), KEY), SendHave(LinkId(A), KEY, 2, b"", True)]
