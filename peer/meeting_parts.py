"""Which parts see to it that a peer is found and reached, as its configuration wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peer.config import PeerConfig
from peer.meeting import MeetingPart
from peer.reached import Reached
from peer.relay import Relay
from peer.startup import Place
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tls import TlsCredentials


@dataclass(frozen=True, slots=True)
class Around:
    """What parts work with.

    Args:
        place: identity, and the enrolment with the run, the coordinator's addresses and the run CA.
        reached: tells the coordinator how we can be reached.
        send: into the session; lost while there is none.
        credentials: the newest; they are renewed while the process runs.
        advertised: what others dial, as said at the start: host:port and libp2p's; empty: we cannot be dialled.
    """

    config: PeerConfig
    place: Place
    relay: Relay
    reached: Reached
    send: Callable[[pb.PeerMessage], None]
    credentials: Callable[[], TlsCredentials]
    advertised: Callable[[], str]


def parts_of(around: Around) -> list[MeetingPart]:
    """All parts of one peer. Call it inside a running event loop."""
    parts: list[MeetingPart] = [around.reached]
    return parts
