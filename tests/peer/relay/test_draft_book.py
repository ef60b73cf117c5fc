"""Test what an origin does with chunks of a version that the learner has not signed yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.relay.draft_book import (
    KEPT_S,
    AppendChunk,
    Command,
    DiscardDraft,
    DraftBook,
    OpenDraft,
    RefuseChunk,
)
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID

V1, V2 = Version(1), Version(2)
BYTES_MOST = 40


def come(book: DraftBook, version: Version, index: int, size: int = 10, now: float = 0.0) -> list[Command]:
    return book.chunk_came(version, KEYFRAME_ID, index, size, now)


def begun(version: Version = V1, chunks: int = 2, bytes_most: int = 1000) -> DraftBook:
    book = DraftBook(bytes_most)
    assert come(book, version, 0) == [OpenDraft(version, 10), AppendChunk()]
    for index in range(1, chunks):
        assert come(book, version, index) == [AppendChunk()]
    return book


def test_chunks_in_order_make_a_draft_that_is_taken_once() -> None:
    book = begun()
    assert come(book, V1, 2, size=3) == [AppendChunk()]
    assert book.announced(V1) == []
    assert not book.take(V2)
    assert book.take(V1)
    assert not book.take(V1)


def test_a_chunk_0_begins_another_draft() -> None:
    book = begun()
    assert come(book, V1, 0, size=4) == [
        DiscardDraft(V1, "the learner began another one"),
        OpenDraft(V1, 4),
        AppendChunk(),
    ]
    assert come(book, V1, 1, size=4) == [AppendChunk()]


def test_what_cannot_continue_the_draft_is_refused() -> None:
    for index, size in ((3, 10), (1, 10), (2, 11)):
        why = f"chunk {index} of {size} bytes does not continue the draft of version 1"
        book = begun()
        assert come(book, V1, index, size) == [DiscardDraft(V1, why), RefuseChunk(why)]
        assert come(book, V1, 2) == [], "the rest is ignored"
    ended = begun()
    assert come(ended, V1, 2, size=9) == [AppendChunk()]
    assert isinstance(come(ended, V1, 3, size=9)[-1], RefuseChunk), "only the last chunk is short"


def test_only_keyframes_may_come() -> None:
    book = begun()
    (refused,) = book.chunk_came(V1, PREVIOUS_ID, 2, 10, 0.0)
    assert isinstance(refused, RefuseChunk)
    assert come(book, V1, 2) == [AppendChunk()], "the draft is as it was"


def test_what_was_announced_needs_no_draft() -> None:
    book = begun()
    assert book.announced(V2) == [DiscardDraft(V1, "version 2 is announced")]
    assert come(book, V1, 0) == come(book, V2, 0) == []
    assert book.announced(V1) == [], "an older announcement changes nothing"
    assert come(book, V2, 0) == []


def test_a_draft_is_as_long_as_a_state_may_be() -> None:
    book = begun(chunks=4, bytes_most=BYTES_MOST)
    assert come(book, V1, 4) == [DiscardDraft(V1, "it is longer than a state may be")]
    assert come(book, V1, 5) == []
    assert not book.take(V1)


def test_a_draft_that_is_never_announced_is_discarded() -> None:
    book = begun()
    come(book, V1, 2, now=100.0)
    assert book.tick(100.0 + KEPT_S) == []
    assert book.tick(101.0 + KEPT_S) == [DiscardDraft(V1, "it was not announced in time")]
    assert book.tick(1000.0 + KEPT_S) == []


chunks = st.tuples(
    st.just("chunk"),
    st.integers(1, 3),
    st.sampled_from([KEYFRAME_ID, KEYFRAME_ID, KEYFRAME_ID, PREVIOUS_ID]),
    st.integers(0, 5),
    st.sampled_from([10, 10, 10, 4]),
)
others = st.tuples(st.sampled_from(["announced", "take", "tick"]), st.integers(1, 3))


@given(st.lists(chunks | others, max_size=40))
def test_the_file_always_holds_the_beginning_of_one_version(facts: list[tuple[object, ...]]) -> None:
    """Carry out the commands on a model of the file."""
    book, now, newest = DraftBook(BYTES_MOST), 0.0, 0
    held: list[int] = []  # sizes of the chunks in the file
    at: Version | None = None
    for fact in facts:
        match fact:
            case ("chunk", int(version), int(encoding), int(index), int(size)):
                commands = book.chunk_came(Version(version), EncodingId(encoding), index, size, now)
            case ("announced", int(version)):
                newest = max(newest, version)
                commands = book.announced(Version(version))
            case ("take", int(version)):
                assert book.take(Version(version)) == (at == version)
                commands, at = [], None if at == version else at
            case _:
                now += KEPT_S
                commands = book.tick(now)
        for command in commands:
            match command:
                case OpenDraft(version=opened, chunk_size_bytes=size_bytes):
                    assert at is None, "one draft at a time"
                    assert opened > newest
                    at, held, full = opened, [], size_bytes
                case AppendChunk():
                    assert fact[:3] == ("chunk", at, KEYFRAME_ID)
                    assert fact[3] == len(held), "in order"
                    assert all(one == full for one in held), "only the last one is short"
                    held.append(int(str(fact[4])))
                    assert sum(held) <= BYTES_MOST
                case DiscardDraft(version=discarded):
                    assert discarded == at
                    at = None
        if at is not None:
            assert at >= newest
