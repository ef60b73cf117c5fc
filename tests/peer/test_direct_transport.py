"""The direct transport: the conformance suite, and what only it can get wrong."""

from __future__ import annotations

from peer.config import LinkConfig
from peer.direct_transport import DirectTransport
from peer.transport import Admission, ChunkTransport, LinkLimits
from rollcast.wire.ids import RunId
from rollcast.wire.tls import TlsCredentials
from tests.peer.transport_conformance import TransportConformance


class TestDirectTransport(TransportConformance):
    def make(self, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits) -> ChunkTransport:
        return DirectTransport(LinkConfig(), credentials, run_id, admit, limits)
