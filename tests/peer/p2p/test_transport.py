"""Test the p2p transport: the conformance suite, and faults that only it can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.links.transport import Admission, ChunkTransport, LinkLimits
from peer.p2p.transport import P2pTransport
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId
from tests.peer.links.transport_conformance import TransportConformance
from tests.peer.relay.relay_world import relay_world, until

pytest.importorskip("libp2p")


class TestP2pTransport(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        return P2pTransport(identity, credentials, run_id, admit, limits=limits)


async def test_versions_reach_peers_that_only_libp2p_reaches(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, *peers = await world.add("origin", "a", "b", "c", link={"stall_timeout_s": 5.0, "p2p": True})
        origin.address = origin.address.split(" ")[0]  # the learner dials it directly
        for peer in peers:
            peer.address = peer.address.split(" ")[1]
        await world.plan(origin, *peers)
        for version in (0, 1):
            published = world.published(version)
            await world.publish(published)
            await until(lambda version=version: all(version in peer.completed for peer in peers))  # type: ignore[misc]
            assert all(peer.state(version) == published.state for peer in peers)
        for peer in peers:
            links = {link.peer_id: link.transport for link in peer.report.links}
            assert {links[other.peer_id] for other in peers if other.peer_id in links} == {"p2p"}
            assert peer.report.chunk_bytes_from_peers > 0
