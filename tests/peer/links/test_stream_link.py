"""Test what a link adds to its stream: caps and measurements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import LIMITS, PAYLOAD, Pair, anyone, push

CAP_MBIT_S = 80.0
BURST_S = 0.05
CHUNKS = 32


@asynccontextmanager
async def far_pair(folder: Path, dialler: LinkConfig, listener: LinkConfig) -> AsyncIterator[tuple[Pair, LinkTraffic]]:
    """Yield two transports that treat loopback as another network, and the traffic of the dialling one."""
    run = LinkRun(folder)
    peer_id, credentials = run.member("peer")
    traffics = [LinkTraffic(config, is_lan=lambda _address: False) for config in (dialler, listener)]
    sending = DirectTransport(dialler, run.member("peer")[1], run.run_id, anyone, LIMITS, traffics[0])
    receiving = DirectTransport(listener, credentials, run.run_id, anyone, LIMITS, traffics[1])
    pair = Pair(run, receiving, sending, peer_id)
    pair.address = await receiving.start(pair.accept)
    try:
        async with asyncio.timeout(10.0):
            yield pair, traffics[0]
    finally:
        await sending.close()
        await receiving.close()


@pytest.mark.parametrize("capped", ["upload", "download"])
async def test_a_cap_holds_for_all_links_together(tmp_path: Path, capped: str) -> None:
    cap = LinkConfig.model_validate({f"{capped}_mbit_s_max": CAP_MBIT_S})
    configs = (cap, LinkConfig()) if capped == "upload" else (LinkConfig(), cap)
    loop = asyncio.get_running_loop()
    async with far_pair(tmp_path, *configs) as (pair, _):
        opened = [await pair.dial() for _ in range(2)]
        began_s = loop.time()
        for link, _ in opened:
            push(link, CHUNKS // 2)
        for _, accepted in opened:
            await accepted.until(lambda accepted=accepted: len(accepted.came) == CHUNKS // 2)
        # What passes last, at most a quarter of a MiB at a time, need not be paid for.
        least_s = (CHUNKS * len(PAYLOAD) - (1 << 19)) * 8e-6 / CAP_MBIT_S - BURST_S
        assert loop.time() - began_s > least_s > 0.1


async def test_a_link_tells_what_was_acknowledged_since_the_last_time(tmp_path: Path) -> None:
    async with far_pair(tmp_path, LinkConfig(), LinkConfig()) as (pair, traffic):
        link, accepted = await pair.dial()
        assert isinstance(link, StreamLink)
        link.newly_acknowledged_bytes()
        push(link, 1)
        await accepted.until(lambda: len(accepted.came) == 1)
        acknowledged = link.newly_acknowledged_bytes()
        assert acknowledged is not None
        assert acknowledged > len(PAYLOAD) // 2, "the last packets may not be acknowledged yet"
        assert traffic.far.links == {link}
        link.close("")
        await accepted.ended()
        assert not traffic.far.links


async def test_chunks_held_back_by_a_cap_are_unsent_and_die_with_the_link(tmp_path: Path) -> None:
    async with far_pair(tmp_path, LinkConfig(upload_mbit_s_max=0.001), LinkConfig()) as (pair, traffic):
        link, accepted = await pair.dial()
        end = push(link, 3)
        await end.until(lambda: link.measure().unsent_bytes > len(PAYLOAD))
        await accepted.chunk()
        assert traffic.uplink(asyncio.get_running_loop().time()).measured_s >= 0
        link.close("enough")
        await end.ended()
        assert end.drained_times == 1


async def test_the_uplink_is_measured_while_chunks_wait(tmp_path: Path) -> None:
    async with far_pair(tmp_path, LinkConfig(pacing_mbit_s=80.0), LinkConfig()) as (pair, traffic):
        link, _accepted = await pair.dial()
        end = push(link, CHUNKS)
        await end.until(lambda: end.drained_times == CHUNKS)
        measured = traffic.uplink(asyncio.get_running_loop().time())
        assert 1e6 < measured.bytes_per_second < 15e6, "what the socket's pacing lets through"
        assert measured.measured_s > 0.02
