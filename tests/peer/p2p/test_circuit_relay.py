"""Links through a relay: the conformance suite of links, and what only a relay can get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("libp2p")

from peer.transport import Admission, ChunkTransport, LinkLimits
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.tls import TlsCredentials
from tests.peer.link_run import LinkRun
from tests.peer.p2p.relayed import relayed_pair
from tests.peer.transport_conformance import LIMITS, Pair, TransportConformance, anyone


class TestRelayedLinks(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        raise NotImplementedError

    @asynccontextmanager
    async def pair(
        self,
        folder: Path,
        *,
        admit: Admission = anyone,
        dialler_run: LinkRun | None = None,
        limits: LinkLimits = LIMITS,
    ) -> AsyncIterator[Pair]:
        async with relayed_pair(folder, admit=admit, dialler_run=dialler_run, limits=limits) as pair:
            yield pair

    async def test_a_dial_reaches_the_named_peer_or_nobody(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            somebody_else = LinkRun(tmp_path / "x").member("peer")[0]
            with pytest.raises(Unreachable, match="no reservation"):
                await pair.dialler.dial(somebody_else, pair.address)
            assert pair.accepted.empty()
