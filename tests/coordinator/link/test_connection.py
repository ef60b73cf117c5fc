"""Test one connection of a link: frames by turns, its end, and what happens if the other end is silent or slow."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.link import connection, frames
from coordinator.link.connection import LinkConnection
from tests.coordinator.link.ends import connect, until


class End:
    """One end, with what it received and why it ended."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.lost: list[str] = []
        self.link = LinkConnection(self.bodies.append, self.lost.append)

    @property
    def items(self) -> list[list[frames.ToCore]]:
        """Return the items of every frame with more than a beat."""
        turns = [frames.items_to_core(body) for body in self.bodies]
        return [turn for turn in turns if turn != [frames.Beat()]]


async def two() -> tuple[End, End]:
    one, other = End(), End()
    await connect(one.link, other.link)
    return one, other


def close(number: int) -> frames.Close:
    return frames.Close(number, "", False)


async def test_what_is_sent_in_one_turn_is_one_frame() -> None:
    one, other = await two()
    one.link.send(close(1))
    one.link.send(close(2))
    await until(lambda: len(other.items) == 1)
    one.link.send(close(3))
    one.link.end("enough")
    one.link.send(close(4))
    await until(lambda: bool(other.lost))
    assert other.items == [[close(1), close(2)], [close(3)]]
    await until(lambda: bool(one.lost))
    assert (one.lost, other.lost) == (["enough"], ["the other end closed the connection"])


async def test_a_large_turn_leaves_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FRAME_BYTES", 20)
    one, other = await two()
    for number in range(100):
        one.link.send(close(number))
    one.link.end("enough")
    await until(lambda: bool(other.lost))
    assert len(other.items) > 10
    assert [item for turn in other.items for item in turn] == [close(number) for number in range(100)]


async def test_a_silent_end_is_lost_and_one_that_beats_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BEAT_S", 0.005)
    one, other = await two()
    await until(lambda: len(other.bodies) > connection.SILENT_BEATS + 5)
    assert not one.lost
    assert other.link._beat_timer is not None
    other.link._beat_timer.cancel()
    await until(lambda: bool(one.lost))
    assert "was silent" in one.lost[0]
    await until(lambda: bool(other.lost))


async def test_an_end_that_does_not_read_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WAITING_BYTES_MAX", 1 << 20)
    one, other = await two()
    assert other.link._transport is not None
    other.link._transport.pause_reading()
    for _ in range(64):
        one.link.send(frames.Renew(1, bytes(1 << 16)))
        await asyncio.sleep(0)
    await until(lambda: bool(one.lost))
    assert "does not read" in one.lost[0]
    other.link.abort("over")
    await until(lambda: bool(other.lost))


async def test_garbage_ends_the_link() -> None:
    one, other = await two()
    assert one.link._transport is not None
    one.link._transport.write(b"\xff" * 8)
    await until(lambda: bool(other.lost))
    assert "at most" in other.lost[0]
    await until(lambda: bool(one.lost))
