"""Test the addresses at which the coordinator sees its callers, once and as a stream.

tests/peer/reachability/test_nat_probe.py and tests/peer/punching/test_port.py test the other end, and real routers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from coordinator.api import observed_address
from coordinator.api.address_stream import PATH as STREAM_PATH
from coordinator.api.address_stream import AddressStream
from coordinator.api.observed_address import ONE_AT_ONCE, PATH, ObservedAddressRoutes
from coordinator.api.speed_test import AT_ONCE
from coordinator.http import server as http_server
from coordinator.join import JoinDesk
from rollcast.runtime.errors import BadSignature
from rollcast.wire.ids import PeerId
from tests.coordinator.api.test_speed_test import NONCE, invited
from tests.coordinator.http.serving import Given, served
from tests.coordinator.running import running


async def test_caller_without_a_listener_is_observed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_address, "SECOND_DEADLINE_S", 0.1)
    async with (
        running(tmp_path) as run,
        aiohttp.ClientSession(run.http_url, headers=invited(run)) as session,
        session.post("/api/v1/speed/seen", json={"nonce": NONCE}) as response,
    ):
        assert response.connection is not None
        assert response.connection.transport is not None
        port = response.connection.transport.get_extra_info("sockname")[1]
        first, second = (json.loads(line) for line in (await response.text()).splitlines())
    assert first == {"address": "127.0.0.1", "port": port, "second_port": first["second_port"]}
    assert second == {"second": None, "reached": False}


async def test_callers_at_the_same_time_share_the_second_port(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed_address, "SECOND_DEADLINE_S", 1.0)
    serve = {"observe_port": unused_tcp_port}

    async def look(session: aiohttp.ClientSession, nonce: str) -> tuple[int, int]:
        """Return our port of the second connection, and the port that the coordinator reports."""
        async with session.post("/api/v1/speed/seen", json={"nonce": nonce}) as response:
            first = json.loads(await response.content.readline())
            assert first["second_port"] == unused_tcp_port
            reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
            writer.write(nonce.encode())
            await reader.read()
            port = writer.get_extra_info("sockname")[1]
            writer.close()
            return port, json.loads(await response.content.readline())["second"]["port"]

    async with (
        running(tmp_path, {"serve": serve}) as run,
        aiohttp.ClientSession(run.http_url, headers=invited(run)) as session,
    ):
        for _ in range(2):  # the second port is closed and opened again in between
            looks = await asyncio.gather(*(look(session, f"{number:032x}") for number in range(AT_ONCE)))
            assert all(ours == theirs for ours, theirs in looks)


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url) as session:
        headers = {"Authorization": "Invite nonsense"}
        async with session.post("/api/v1/speed/seen", json={"nonce": NONCE}, headers=headers) as response:
            assert (response.status, (await response.json())["code"]) == (403, "RC301")
        for wrong in ({}, {"nonce": "x"}, {"nonce": NONCE, "port": 22}):
            async with session.post("/api/v1/speed/seen", json=wrong, headers=invited(run)) as response:
                assert response.status == 400


async def test_concurrent_measurements_are_limited(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        nonces = [f"{number:032x}" for number in range(AT_ONCE)]
        open_ones = [await session.post("/api/v1/speed/seen", json={"nonce": nonce}) for nonce in nonces]
        async with session.post("/api/v1/speed/seen", json={"nonce": NONCE}) as refused:
            assert refused.status >= 429
        for one in open_ones:
            one.close()


class Desk:
    """A desk to which every proof is valid and names the member."""

    def check_member(self, proof: str, path: str) -> PeerId:
        return PeerId(proof)


async def test_limits_are_per_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_address, "SECOND_DEADLINE_S", 0.01)
    look = ObservedAddressRoutes(cast(JoinDesk, Desk()), "127.0.0.1")
    async with served(tmp_path, Given(routes=look.routes())) as page:

        async def status(name: str) -> int:
            async with page.client.post(page.url + PATH, json={"nonce": NONCE}, headers=member(name)) as response:
                await response.read()
                return response.status

        assert [await status("anna") for _ in range(ONE_AT_ONCE)] == [200] * ONE_AT_ONCE
        assert await status("anna") >= 429
        assert await status("bert") == 200


async def test_connections_of_strangers_to_the_second_port_are_bounded(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed_address, "SECOND_DEADLINE_S", 1.0)
    monkeypatch.setattr(observed_address, "_ACCEPTED_AT_ONCE", 2)
    look = ObservedAddressRoutes(cast(JoinDesk, Desk()), "127.0.0.1", unused_tcp_port)
    async with (
        served(tmp_path, Given(routes=look.routes())) as page,
        page.client.post(page.url + PATH, json={"nonce": NONCE}, headers=member("anna")) as response,
    ):
        await response.content.readline()
        kept = [await asyncio.open_connection("127.0.0.1", unused_tcp_port) for _ in range(3)]
        async with asyncio.timeout(0.5):
            assert await kept[2][0].read() == b""
        assert not kept[0][0].at_eof()
        for _, writer in kept:
            writer.close()


INTERVAL_S = 0.05


class DeskOf:
    """A desk with these members, to which a proof is the member's name."""

    def __init__(self, *members: str) -> None:
        self.members = set(members)

    def check_member(self, proof: str, path: str) -> PeerId:
        if proof not in self.members or path != STREAM_PATH:
            raise BadSignature("no member")
        return PeerId(proof)

    def has_session(self, peer_id: PeerId) -> bool:
        return peer_id in self.members


def address_stream(desk: DeskOf, most: int = 8) -> AddressStream:
    return AddressStream(cast(JoinDesk, desk), interval_s=INTERVAL_S, most=most)


def member(name: str) -> dict[str, str]:
    return {"Authorization": f"Member {name}"}


async def line_of(response: aiohttp.ClientResponse) -> dict[str, Any] | None:
    async with asyncio.timeout(5.0):
        line = await response.content.readline()
    return json.loads(line) if line else None


async def test_member_receives_its_address_repeatedly(tmp_path: Path) -> None:
    watched = address_stream(DeskOf("anna"))
    async with (
        served(tmp_path, Given(routes=watched.routes())) as page,
        page.client.get(page.url + STREAM_PATH, headers=member("anna")) as response,
    ):
        assert response.connection is not None
        assert response.connection.transport is not None
        port = response.connection.transport.get_extra_info("sockname")[1]
        for _ in range(3):
            assert await line_of(response) == {"address": "127.0.0.1", "port": port}
        assert watched.open_connections == 1


async def test_a_member_may_watch_over_ipv4_and_ipv6_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_check_bind", lambda *_: None)  # which wants TLS for the interface of both
    seen: list[str] = []
    watched = AddressStream(
        cast(JoinDesk, DeskOf("anna")), interval_s=INTERVAL_S, seen=lambda _peer_id, host: seen.append(host)
    )
    async with served(tmp_path, Given(routes=watched.routes(), hosts=None), host="::") as page:
        over_ipv4, over_ipv6 = (f"http://{host}:{page.server.port}{STREAM_PATH}" for host in ("127.0.0.1", "[::1]"))
        async with (
            page.client.get(over_ipv4, headers=member("anna")) as one,
            page.client.get(over_ipv6, headers=member("anna")) as other,
        ):
            for _ in range(2):
                lines = [await line_of(response) for response in (one, other)]
                assert [line["address"] for line in lines if line] == ["127.0.0.1", "::1"]
            assert watched.open_connections == 2
    assert seen == ["127.0.0.1", "::1"]


async def test_strangers_are_refused(tmp_path: Path) -> None:
    watched = address_stream(DeskOf("anna"))
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        for headers in ({}, member("bert"), {"Authorization": "Bearer x"}):
            async with page.client.get(page.url + STREAM_PATH, headers=headers) as response:
                assert response.status == 403
    assert watched.open_connections == 0


async def test_new_request_replaces_the_connection_and_leaving_ends_it(tmp_path: Path) -> None:
    desk = DeskOf("anna")
    watched = address_stream(desk)
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        first = await page.client.get(page.url + STREAM_PATH, headers=member("anna"))
        await line_of(first)
        second = await page.client.get(page.url + STREAM_PATH, headers=member("anna"))
        await line_of(second)
        assert await line_of(first) is None
        assert watched.open_connections == 1
        desk.members.clear()
        while await line_of(second) is not None:
            pass
        assert watched.open_connections == 0


async def test_few_are_kept_and_none_when_it_ends(tmp_path: Path) -> None:
    watched = address_stream(DeskOf("anna", "bert"), most=1)
    async with served(tmp_path, Given(routes=watched.routes())) as page:
        first = await page.client.get(page.url + STREAM_PATH, headers=member("anna"))
        await line_of(first)
        async with page.client.get(page.url + STREAM_PATH, headers=member("bert")) as refused:
            assert refused.status >= 429
        watched.end()
        while await line_of(first) is not None:
            pass
        async with page.client.get(page.url + STREAM_PATH, headers=member("anna")) as refused:
            assert refused.status >= 429
