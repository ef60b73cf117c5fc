"""Real relays on loopback: how a version gets from the learner to everybody, and what may go wrong on the way."""

from __future__ import annotations

from pathlib import Path

from tests.peer.relay_world import relay_world, until


async def test_versions_reach_all_peers_along_the_stripes(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, *peers = await world.add("origin", "a", "b", "c")
        await world.plan(origin, *peers)
        for version in (0, 1):
            published = world.published(version)
            await world.push(published)
            assert origin.store.versions()[-1] == version, "acknowledged, so it is durable"
            world.announce(published)
            await until(lambda version=version: all(version in peer.completed for peer in peers))
            for peer in peers:
                assert peer.state(version) == published.state
                assert peer.relay.bytes_received(version) >= len(published.state)
        for peer in peers:
            assert peer.report.chunk_bytes_from_peers > 0, "peers pass on what they are given"
        assert origin.completed == [0, 1]
