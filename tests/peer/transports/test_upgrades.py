"""Test better paths for open links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.links.paths import Paths
from peer.links.transport import Link, LinkMeasurement
from peer.transports.transports import Transports
from peer.transports.upgrades import PathUpgrades, Upgrading
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId
from tests.peer.relay.relay_world import relay_world, until

PEER = PeerId("a")

ADDRESS = "5.5.5.1:1 punch /ip4/5.5.5.9/tcp/4/p2p/relay/p2p-circuit/p2p/a"


class FakeLink:
    def __init__(self, transport: str, rate: float = 0.0) -> None:
        self.peer_id, self.transport, self.lan = PEER, transport, False
        self.rate = rate
        self.slow = False
        self.over = ""

    def measure(self) -> LinkMeasurement:
        return LinkMeasurement(0.1, 0, "", 0.0, self.rate, slow=self.slow)

    def close(self, reason: str, code: str = "") -> None:
        self.over = reason


class Holder:
    """Transports whose dials lead to ``answer``, and the holder of their links."""

    def __init__(self, link: FakeLink, answer: FakeLink | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links = [link]
        self.dialled: list[list[str]] = []
        self.later: list[Callable[[], None]] = []
        self._answer = answer
        self.now = 0.0
        loop = SimpleNamespace(time=lambda: self.now, call_later=self._call_later)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        self.transports = Transports(cast(Any, None), cast(Any, None), policy=cast(Any, None))
        monkeypatch.setattr(self.transports, "dial_first", self._dial_first)
        self.upgrading = Upgrading(self.transports, self, Random(1))

    def _call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.later.append(lambda: call(*args))

    async def _dial_first(self, _peer_id: PeerId, addresses: tuple[str, ...]) -> Link:
        self.dialled.append(list(addresses))
        if self._answer is None:
            raise Unreachable("no")
        return cast(Link, self._answer)

    async def at(self, now: float) -> None:
        self.now = now
        await self.upgrading.check()

    def open_links(self) -> list[tuple[Link, str]]:
        return [(cast(Link, link), ADDRESS) for link in self.links[-1:]]

    def take_link(self, link: Link) -> None:
        self.links.append(cast(FakeLink, link))

    def drop_link(self, link: Link, reason: str) -> None:
        link.close(reason)


async def test_a_relayed_link_is_replaced_by_a_punched_one_and_that_by_a_direct_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relayed, punched = FakeLink("relayed"), FakeLink("punched")
    holder = Holder(relayed, punched, monkeypatch)
    await holder.at(0.0)
    assert not holder.dialled, "not at once"
    await holder.at(30.0)
    assert holder.dialled == [["5.5.5.1:1", "punch"]]
    assert holder.links == [relayed, punched]
    over_before = relayed.over
    holder.later.pop()()
    assert (over_before, relayed.over) == ("", "replaced by a better path"), "what was asked for on it still came"
    await holder.at(40.0)
    await holder.at(70.0)
    assert holder.dialled[1:] == [["5.5.5.1:1"]]


async def test_a_link_that_is_no_better_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    same = FakeLink("relayed")
    holder = Holder(FakeLink("relayed"), same, monkeypatch)
    await holder.at(0.0)
    await holder.at(30.0)
    assert len(holder.links) == 1
    assert same.over
    await holder.at(59.0)
    assert len(holder.dialled) == 1


async def test_failures_wait_and_the_link_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(FakeLink("punched"), None, monkeypatch)
    for second in range(0, 600, 5):
        await holder.at(float(second))
    assert 3 <= len(holder.dialled) <= 6
    assert len(holder.links) == 1


async def test_a_far_slower_direct_link_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(FakeLink("direct", rate=1e5), FakeLink("relayed"), monkeypatch)
    paths: Paths = holder.transports.paths
    paths.measured(PEER, "relayed", 5e6, 0.0)
    await holder.at(0.0)
    await holder.at(30.0)
    assert holder.dialled == [["punch", ADDRESS.split()[-1]]], "nobody knows yet how fast a hole is"


async def test_a_link_that_becomes_slow_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = FakeLink("direct", rate=5e6)
    holder = Holder(direct, FakeLink("punched"), monkeypatch)
    await holder.at(0.0)
    assert not holder.upgrading.look()
    direct.slow = True
    holder.now = 7.0
    assert holder.upgrading.look()
    await holder.at(7.0)
    assert holder.dialled[0][0] == "punch"
    assert [one.transport for one in holder.links] == ["direct", "punched"]


async def test_a_slow_link_without_a_better_address_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = FakeLink("direct", rate=5e6)
    holder = Holder(direct, None, monkeypatch)
    await holder.at(0.0)
    paths = holder.transports.paths
    direct.slow = True
    assert [holder.upgrading.look(), holder.upgrading.look()] == [True, False]
    assert paths.rate(PEER, "direct", 0.0) == pytest.approx(5e5)


async def test_relays_switch_from_libp2p_to_a_direct_link_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("libp2p")
    monkeypatch.setattr("peer.transports.upgrades._FIRST_S", 0.2)
    monkeypatch.setattr("peer.transports.upgrades._CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("peer.transports.upgrades._LINGER_S", 0.2)
    async with relay_world(tmp_path) as world:
        settings = {"link": {"stall_timeout_s": 5.0, "p2p": True}, "store": {"retry_s": 0.05, "keep_versions": 3}}
        origin, peer = await world.add("origin", "a", **settings)
        direct, libp2p = origin.address.split(" ")
        origin.address, peer.address = libp2p, ""
        await world.plan(origin, peer)
        assert [link.transport for link in peer.report.links] == ["p2p"]
        origin.address = f"{direct} {libp2p}"
        await world.plan(origin, peer)
        origin.address = direct  # the learner's
        published = [world.published(version) for version in range(3)]
        for one in published:
            await world.publish(one)
        await until(lambda: [link.transport for link in peer.report.links] == ["direct"])
        await until(lambda: peer.completed == [0, 1, 2])
        assert [(link.transport, link.lan) for link in peer.report.links] == [("direct", True)]
        assert all(peer.state(one.version) == one.state for one in published)
        assert peer.report.chunks_rejected == 0


A, B = PeerId("a"), PeerId("b")

DIRECT = ("10.0.0.1:1",)


def looking(*better: tuple[PeerId, tuple[str, ...]], now: float = 0.0) -> PathUpgrades:
    upgrades = PathUpgrades()
    upgrades.update(better, 1.0, now)
    return upgrades


def test_a_better_path_is_tried_after_a_while_and_then_ever_more_rarely() -> None:
    upgrades, now, tries = looking((A, DIRECT)), 0.0, []
    while len(tries) < 9:
        if upgrades.due(now) == (A, DIRECT):
            tries.append(now)
            upgrades.failed(A, 1.0, now)
        now += 1.0
    waits = [later - before for before, later in zip([0.0, *tries], tries, strict=False)]
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0, 1800.0]


def test_the_backoff_restarts_only_for_a_new_address() -> None:
    upgrades = looking((A, DIRECT))
    upgrades.failed(A, 1.0, 30.0)
    upgrades.update([(A, DIRECT)], 1.0, 80.0)
    assert upgrades.due(89.0) is None
    assert upgrades.due(90.0) == (A, DIRECT)
    upgrades.update([(A, (*DIRECT, "punch"))], 1.0, 90.0)
    assert upgrades.due(119.0) is None
    assert upgrades.due(120.0) == (A, (*DIRECT, "punch"))


def test_a_peer_without_a_better_path_is_discarded() -> None:
    upgrades = looking((A, DIRECT), (B, DIRECT))
    upgrades.update([(B, DIRECT)], 1.0, 10.0)
    assert upgrades.due(1e9) == (B, DIRECT)
    upgrades.opened(B)
    assert upgrades.due(1e9) is None
    upgrades.failed(A, 0.5, 0.0)
    assert upgrades.due(1e9) is None


def test_the_peer_that_waits_longest_is_first() -> None:
    upgrades = looking((A, DIRECT), (B, DIRECT))
    upgrades.failed(A, 1.0, 0.0)
    assert upgrades.due(1e6) == (B, DIRECT)


@given(jitter=st.floats(0.0, 1.0), tries=st.integers(0, 40))
def test_waits_stay_between_a_quarter_minute_and_half_an_hour(jitter: float, tries: int) -> None:
    upgrades = PathUpgrades()
    upgrades.update([(A, DIRECT)], jitter, 0.0)
    for _ in range(tries):
        upgrades.failed(A, jitter, 0.0)
    assert upgrades.due(14.9) is None
    assert upgrades.due(1800.0) == (A, DIRECT)
