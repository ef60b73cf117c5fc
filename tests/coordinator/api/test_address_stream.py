"""The coordinator's end of watching how one is seen; tests/peer/punching/test_port_keeper.py has a member's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import aiohttp

from coordinator.api.address_stream import PATH, AddressStream
from coordinator.join import JoinDesk
from rollcast.runtime.errors import BadSignature
from rollcast.wire.ids import PeerId
from tests.coordinator.http.serving import Given, served

INTERVAL_S = 0.05


class Desk:
    """Knows members by name: a proof is the name."""

    def __init__(self, *members: str) -> None:
        self.members = set(members)

    def check_member(self, proof: str, path: str) -> PeerId:
        if proof not in self.members or path != PATH:
            raise BadSignature("no member")
        return PeerId(proof)

    def has_session(self, peer_id: PeerId) -> bool:
        return peer_id in self.members


def address_stream(desk: Desk, most: int = 8) -> AddressStream:
    return AddressStream(cast(JoinDesk, desk), interval_s=INTERVAL_S, most=most)


def member(name: str) -> dict[str, str]:
    return {"Authorization": f"Member {name}"}


async def line_of(response: aiohttp.ClientResponse) -> dict[str, Any] | None:
    async with asyncio.timeout(5.0):
        line = await response.content.readline()
    return json.loads(line) if line else None


async def test_a_member_is_told_again_and_again_where_it_comes_from(tmp_path: Path) -> None:
    watched = address_stream(Desk("anna"))
    async with (
        served(tmp_path, Given(routes=watched.routes())) as page,
        page.client.get(page.url + PATH, headers=member("anna")) as response,
    ):
        assert response.connection is not None
        assert response.connection.transport is not None
        port = response.connection.transport.get_extra_info("sockname")[1]
        for _ in range(3):
            assert await line_of(response) == {"address": "127.0.0.1", "port": port}
        assert watched.open_connections == 1


async def test_strangers_are_told_nothing(tmp_path: Path) -> None:
    watched = address_stream(Desk("anna"))
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        for headers in ({}, member("bert"), {"Authorization": "Bearer x"}):
            async with page.client.get(page.url + PATH, headers=headers) as response:
                assert response.status == 403
    assert watched.open_connections == 0


async def test_who_asks_anew_has_one_connection_and_who_left_none(tmp_path: Path) -> None:
    desk = Desk("anna")
    watched = address_stream(desk)
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        first = await page.client.get(page.url + PATH, headers=member("anna"))
        await line_of(first)
        second = await page.client.get(page.url + PATH, headers=member("anna"))
        await line_of(second)
        assert await line_of(first) is None
        assert watched.open_connections == 1
        desk.members.clear()
        while await line_of(second) is not None:
            pass
        assert watched.open_connections == 0


async def test_few_are_kept_and_none_when_it_ends(tmp_path: Path) -> None:
    watched = address_stream(Desk("anna", "bert"), most=1)
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        first = await page.client.get(page.url + PATH, headers=member("anna"))
        await line_of(first)
        async with page.client.get(page.url + PATH, headers=member("bert")) as refused:
            assert refused.status >= 429
        watched.end()
        while await line_of(first) is not None:
            pass
        async with page.client.get(page.url + PATH, headers=member("anna")) as refused:
            assert refused.status >= 429
