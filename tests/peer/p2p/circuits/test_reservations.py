from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("libp2p")

import trio
import trio.testing

from peer.links.addresses import P2pAddress
from peer.p2p.circuits.reservations import Reservations

RELAYS = tuple(P2pAddress("ip4", f"192.0.2.{number}", 4001, f"r{number}") for number in range(1, 5))


class Relays:
    """Relays that hold reservations until the test ends them; some refuse."""

    def __init__(self, *refusing: P2pAddress) -> None:
        self.refusing = set(refusing)
        self.asked: list[P2pAddress] = []
        self.breaking = {relay: trio.Event() for relay in RELAYS}
        self.told: list[tuple[P2pAddress, ...]] = []

    async def reserve(self, relay: P2pAddress, held: Callable[[], None]) -> None:
        self.asked.append(relay)
        if relay in self.refusing:
            raise ConnectionError("no")
        held()
        await self.breaking[relay].wait()
        self.breaking[relay] = trio.Event()
        raise ConnectionError("it went")


def played(play: Callable[[Relays, Reservations], object], *refusing: P2pAddress) -> Relays:
    relays = Relays(*refusing)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            reservations = Reservations(relays.reserve, relays.told.append, nursery, lambda: 0.0)
            await play(relays, reservations)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return relays


def test_reservations_are_held_at_the_first_two_relays() -> None:
    async def play(_: Relays, reservations: Reservations) -> None:
        reservations.want(RELAYS)
        await trio.sleep(1.0)

    assert played(play).told[-1] == RELAYS[:2]


def test_a_relay_that_refuses_is_skipped_and_retried_later() -> None:
    async def play(relays: Relays, reservations: Reservations) -> None:
        reservations.want(RELAYS[:3])
        await trio.sleep(0.5)
        assert relays.told[-1] == RELAYS[1:3]
        assert relays.asked.count(RELAYS[0]) == 1
        relays.refusing.clear()
        relays.breaking[RELAYS[1]].set()
        await trio.sleep(400.0)
        assert len(relays.told[-1]) == 2

    played(play, RELAYS[0])


def test_a_lost_reservation_is_replaced() -> None:
    async def play(relays: Relays, reservations: Reservations) -> None:
        reservations.want(RELAYS[:3])
        await trio.sleep(0.5)
        relays.breaking[RELAYS[0]].set()
        await trio.sleep(0.5)
        assert relays.told[-1] == RELAYS[1:3]

    played(play)


def test_a_relay_that_always_refuses_is_asked_ever_more_rarely() -> None:
    async def play(_: Relays, reservations: Reservations) -> None:
        reservations.want(RELAYS[:1])
        await trio.sleep(3600.0)

    assert 10 < len(played(play, RELAYS[0]).asked) < 40


def test_reservations_at_relays_no_longer_named_end() -> None:
    async def play(relays: Relays, reservations: Reservations) -> None:
        reservations.want(RELAYS[:2])
        await trio.sleep(0.5)
        reservations.want(RELAYS[1:3])
        await trio.sleep(0.5)
        assert relays.told[-1] == RELAYS[1:3]
        reservations.want(())
        await trio.sleep(0.5)
        assert relays.told[-1] == ()

    played(play)
