"""Test the core's end of a link: what it refuses from a gateway, and what it does when the gateway is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from coordinator.core.events.events import WorkRequested
from coordinator.link import core_end, frames
from coordinator.link.core_end import CoreEnd
from coordinator.rpc.core_link import LocalCore, NotNow
from tests.coordinator.link.ends import ALICE, BOB, SETTINGS, WAIT_S, RecordingCore, connect, hello, joined, until
from tests.coordinator.link.test_connection import End


class Gateway:
    """A gateway that says what a test makes it say."""

    def __init__(self, core: RecordingCore, ends: set[CoreEnd]) -> None:
        self.core = core
        self.end = CoreEnd(cast(LocalCore, core), SETTINGS, ends)
        self.own = End()

    def say(self, *items: frames.ToCore) -> None:
        for item in items:
            self.own.link.send(item)

    @property
    def heard(self) -> list[frames.ToGateway]:
        """Return what the core said, without beats."""
        items = [item for body in self.own.bodies for item in frames.items_to_gateway(body)]
        return [item for item in items if not isinstance(item, frames.Beat)]

    async def lost(self) -> str:
        """Wait until the core has ended the link; return its reason."""
        await until(lambda: bool(self.own.lost))
        return self.end.link._ended_because


WANTED = frames.told(1, WorkRequested(ALICE, 1))


@asynccontextmanager
async def gateway(*, greeted: bool = True) -> AsyncIterator[Gateway]:
    ends = set[CoreEnd]()
    one = Gateway(RecordingCore(), ends)
    await connect(one.end.link, one.own.link)
    if greeted:
        one.say(hello())
        await until(lambda: bool(one.heard))
    try:
        yield one
    finally:
        one.own.link.abort("over")
        await until(lambda: not ends)


def opens(number: int = 1, *, resumed: bool = False) -> frames.Open:
    return frames.Open(number, joined(ALICE), "attic", "ipv4:192.0.2.7:4000", resumed)


async def test_a_gateway_is_given_its_certificate() -> None:
    async with gateway() as one:
        assert one.heard == [frames.Ready("run", b"ca", b"certificate of csr", True, b"welcome")]
        assert one.end.name == "west"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([frames.told(1, WorkRequested(ALICE, 1))], "which it has not opened"),
        ([opens(), opens()], "opens session 1 twice"),
        ([opens(), frames.told(1, WorkRequested(BOB, 1))], "of another peer"),
        ([frames.Renew(4, b"")], "which it has not opened"),
        ([frames.Close(4, "", False)], "which it has not opened"),
        (
            [opens(), frames.Told(1, "RunEnded", frames.told(1, WorkRequested(ALICE, 1)).event)],
            "of the kind 'RunEnded'",
        ),
    ],
)
async def test_a_gateway_that_contradicts_itself_is_lost(said: list[frames.ToCore], reason: str) -> None:
    async with gateway() as one:
        one.say(*said)
        assert reason in await one.lost()
        assert not one.core.events


async def test_a_gateway_begins_with_hello() -> None:
    async with gateway(greeted=False) as one:
        one.say(opens())
        assert "must begin with Hello" in await one.lost()
        assert not one.core.openings


async def test_a_gateway_that_does_not_say_hello_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_end, "HELLO_DEADLINE_S", 0.01)
    async with gateway(greeted=False) as one:
        assert await one.lost() == "it did not say Hello"


async def test_gateways_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_end, "GATEWAYS_MAX", 0)
    async with gateway(greeted=False) as one:
        assert await one.lost() == "0 gateways are connected"


async def test_requests_in_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as one:
        monkeypatch.setattr(core_end, "TASKS_MAX", 1)
        one.core.may_open.clear()
        one.say(opens(1), opens(2))
        assert "requests in progress" in await one.lost()


async def test_what_a_resumed_session_says_waits_until_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as one:
        one.core.may_open.clear()
        event = WorkRequested(ALICE, 1)
        one.say(opens(resumed=True), frames.told(1, event))
        await until(lambda: bool(one.core.openings))
        assert not one.core.events
        one.core.may_open.set()
        await until(lambda: one.core.events == [event])
        one.core.may_open.clear()
        monkeypatch.setattr(core_end, "EARLY_MAX", 1)
        one.say(opens(2, resumed=True), frames.told(2, event), frames.told(2, event))
        assert "more than 1 events" in await one.lost()


async def test_a_refused_session_may_speak_until_it_is_closed() -> None:
    async with gateway() as one:
        one.core.refusals[ALICE] = NotNow("another session of the same peer replaced it")
        one.say(opens(resumed=True))
        await until(lambda: any(isinstance(item, frames.NotOpened) for item in one.heard))
        one.say(WANTED, frames.Renew(1, b"csr"), frames.Close(1, "refused", False))
        one.core.refusals.clear()
        one.say(opens(1))
        await until(lambda: frames.Opened(1, "invite of alice") in one.heard)
        assert (one.core.events, one.core.closed, one.end.session_count) == ([], [], 1)


async def test_thousands_of_sessions_that_come_back_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_end, "RESUMED_AT_ONCE", 2)
    async with gateway() as one:
        most, before = 0, 0
        one.say(*(opens(number, resumed=True) for number in range(50)))
        async with asyncio.timeout(WAIT_S):
            while len(one.core.openings) < 50:
                await asyncio.sleep(0)
                most, before = max(most, len(one.core.openings) - before), len(one.core.openings)
        assert 0 < most <= 2 * core_end.RESUMED_AT_ONCE
        await until(lambda: sum(isinstance(item, frames.Opened) for item in one.heard) == 50)


async def test_thousands_of_sessions_that_are_lost_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_end, "CLOSED_A_TURN", 2)
    async with gateway() as one:
        one.say(*(opens(number) for number in range(9)))
        await until(lambda: sum(isinstance(item, frames.Opened) for item in one.heard) == 9)
        closed = list[int]()
        one.own.link.abort("killed")
        async with asyncio.timeout(WAIT_S):
            while len(one.core.closed) < 9:
                await asyncio.sleep(0)
                closed.append(len(one.core.closed))
        assert sorted(set(closed) - {0}) == [2, 4, 6, 8, 9]
        assert set(one.core.closed) == {(ALICE, "its gateway was lost", False)}


async def test_sessions_end_with_their_gateway_and_answers_go_nowhere() -> None:
    async with gateway() as one:
        one.say(opens())
        await until(lambda: frames.Opened(1, "invite of alice") in one.heard)
        one.say(frames.Malformed(9, 1, 1, 2, 3, "no segment"))  # type: ignore[arg-type]
        await until(lambda: bool(one.core.answers))
        channel = one.core.channels[ALICE]
        one.own.link.abort("killed")
        await until(lambda: bool(one.core.closed))
        assert one.core.closed == [(ALICE, "its gateway was lost", False)]
        one.core.accept()
        channel.end("again")
        await asyncio.sleep(0)
        assert channel.ended_because == "its gateway was lost"


async def test_a_defect_ends_the_process() -> None:
    async with gateway() as one:
        one.core.refusals[ALICE] = ZeroDivisionError("a defect")
        one.say(opens())
        async with asyncio.timeout(WAIT_S):
            await until(lambda: bool(one.core.failures))
        assert isinstance(one.core.failures[0], ZeroDivisionError)
