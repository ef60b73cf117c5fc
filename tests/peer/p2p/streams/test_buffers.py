"""Test the buffers between the two threads of a p2p link; one thread plays both here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.p2p.streams.buffers import ROOM_BYTES, LinkBuffers


class Both:
    """Buffers, and the number of times that each side was woken."""

    def __init__(self, window_bytes: int = 100) -> None:
        self.rings = 0
        self.host_wakes = 0
        self.buffers = LinkBuffers(window_bytes, self.call)
        self.buffers.on_change = self.ring
        self.buffers.attach(self.wake)
        self.host_wakes = 0

    def call(self, call: Callable[[], None]) -> None:
        call()

    def ring(self) -> None:
        self.rings += 1

    def wake(self) -> None:
        self.host_wakes += 1


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(1, 40))
def test_queued_bytes_leave_in_order_and_in_pieces(given_buffers: list[bytes], most: int) -> None:
    both = Both()
    both.buffers.give(given_buffers)
    total = sum(map(len, given_buffers))
    left = b""
    while piece := b"".join(both.buffers.parts(most)):
        assert len(piece) == min(most, total - len(left))
        left += piece
        assert both.buffers.leaving_bytes == total - len(left) + len(piece), "still leaving until it has left"
        both.buffers.left(len(piece))
    assert left == b"".join(given_buffers)
    assert (both.buffers.leaving_bytes, both.buffers.gone_bytes) == (0, total)
    assert both.rings == 0, "it was never full"


def test_the_loop_is_woken_once_there_is_room_for_more() -> None:
    both = Both()
    both.buffers.give([bytes(2 * ROOM_BYTES + 10)])
    assert both.buffers.full
    both.buffers.parts(ROOM_BYTES)
    assert both.buffers.full
    both.buffers.parts(ROOM_BYTES)
    assert (both.buffers.full, both.rings) == (False, 1)
    both.buffers.parts(ROOM_BYTES)
    assert (both.rings, both.buffers.leaving_bytes) == (1, 2 * ROOM_BYTES + 10)


def test_nothing_leaves_without_room() -> None:
    both = Both()
    both.buffers.give([b"abc"])
    assert both.buffers.parts(0) == []


def test_the_loop_is_woken_for_the_first_of_many() -> None:
    both = Both()
    assert both.buffers.came(b"a")
    assert both.buffers.came(b"b")
    assert both.rings == 0
    both.buffers.rest()
    both.buffers.rest()
    assert both.rings == 1
    assert [both.buffers.take(), both.buffers.take()] == [b"ab", None]
    assert both.buffers.came(b"c")
    both.buffers.rest()
    assert both.rings == 2


def test_single_bytes_take_no_more_memory_than_long_pieces() -> None:
    both = Both(1 << 20)
    sent = bytes(index % 251 for index in range(3 * ROOM_BYTES))
    for index in range(len(sent)):
        assert both.buffers.came(memoryview(sent)[index : index + 1])
    whole = bytes(2048)
    both.buffers.came(whole)
    both.buffers.came(b"x")
    pieces = []
    while (piece := both.buffers.take()) is not None:
        pieces.append(piece)
    assert b"".join(pieces) == sent + whole + b"x"
    assert len(pieces) == 5
    assert pieces[3] is whole, "long ones are not copied"


def test_more_than_was_granted_is_refused() -> None:
    both = Both(100)
    assert both.buffers.came(bytes(100))
    assert not both.buffers.came(b"x")


def test_grants_follow_what_was_consumed_a_quarter_of_the_window_at_a_time() -> None:
    both = Both(100)
    both.buffers.came(bytes(80))
    both.buffers.consumed(24)
    assert (both.buffers.granted_bytes, both.host_wakes) == (100, 0)
    both.buffers.consumed(1)
    assert (both.buffers.granted_bytes, both.host_wakes) == (125, 1)


@pytest.mark.parametrize(("by_libp2p", "more"), [(60, 40), (100, 0), (150, 0)])
def test_what_libp2p_granted_by_itself_is_counted(by_libp2p: int, more: int) -> None:
    both = Both(100)
    assert both.buffers.opened(by_libp2p) == more
    assert both.buffers.granted_bytes == by_libp2p + more
    assert both.buffers.came(bytes(by_libp2p + more))
    assert not both.buffers.came(b"x")


def test_a_smaller_window_takes_no_grant_back() -> None:
    both = Both(100)
    both.buffers.limit_window(10)
    both.buffers.came(bytes(100))
    both.buffers.consumed(50)
    assert both.buffers.granted_bytes == 100
    both.buffers.consumed(50)
    assert both.buffers.granted_bytes == 110


@pytest.mark.parametrize("abort", [False, True])
def test_the_end_wakes_the_host(abort: bool) -> None:
    both = Both()
    both.buffers.abort() if abort else both.buffers.finish()
    assert (both.buffers.finishing, both.buffers.aborted, both.host_wakes) == (True, abort, 1)


def test_the_first_reason_stands() -> None:
    both = Both()
    assert both.buffers.over == ""
    both.buffers.end("first", broken=False)
    both.buffers.end("second")
    assert (both.buffers.over, both.buffers.broken, both.rings) == ("first", False, 2)


def test_a_fast_link_has_room_for_several_pieces_and_wakes_the_loop_at_half() -> None:
    now, rings = [0.0], []
    buffers = LinkBuffers(100, lambda call: rings.append(call), lambda: now[0])
    buffers.give([bytes(ROOM_BYTES)])
    assert buffers.full
    buffers.parts(ROOM_BYTES)
    now[0] += 0.05
    buffers.left(8 << 20)
    rings.clear()
    buffers.give([bytes(3 * ROOM_BYTES)])
    assert not buffers.full
    buffers.give([bytes(ROOM_BYTES)])
    assert buffers.full
    buffers.parts(ROOM_BYTES)
    buffers.parts(ROOM_BYTES)
    assert not rings
    buffers.parts(ROOM_BYTES)
    assert (len(rings), buffers.full) == (1, False)
    now[0] += 1.0
    buffers.left(ROOM_BYTES)
    buffers.give([bytes(ROOM_BYTES)])
    assert buffers.full, "it has become slow"


def test_a_loop_that_waits_for_room_is_woken_although_the_room_grew() -> None:
    now, rings = [0.0], []
    buffers = LinkBuffers(100, lambda call: rings.append(call), lambda: now[0])
    buffers.give([bytes(2 * ROOM_BYTES)])
    assert buffers.full
    now[0] += 0.05
    buffers.left(8 << 20)
    buffers.parts(10)
    assert (len(rings), buffers.full) == (1, False)
