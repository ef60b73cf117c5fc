"""The p2p transport: the conformance suite, and what only it can get wrong."""

from __future__ import annotations

import pytest

from peer.p2p.transport import P2pTransport
from peer.transport import Admission, ChunkTransport, LinkLimits
from rollcast.wire.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.tls import TlsCredentials
from tests.peer.transport_conformance import TransportConformance

pytest.importorskip("libp2p")


class TestP2pTransport(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        return P2pTransport(identity, credentials, run_id, admit, limits=limits)
