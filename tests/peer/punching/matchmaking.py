"""Play the coordinator between punching transports of one test: any two of them may dial each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from peer.punching.transport import PunchTransport
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

Server = Literal["asker", "other"]


@dataclass
class Matchmaking:
    """Pass each transport's request on as orders to it and to the other transport.

    Args:
        server: the end that is the server in TLS, the asker or the other.
        knows: whether the asker knows the other's outside address, and the other the asker's.
        version: of IP, over which they are known.
    """

    server: Server = "other"
    knows: tuple[bool, bool] = (True, True)
    version: Literal[4, 6] = 4
    deadline_s: float = 5.0
    transports: dict[PeerId, PunchTransport] = field(default_factory=dict)
    port_numbers: dict[PeerId, int] = field(default_factory=dict)
    outcomes: dict[PeerId, list[bool]] = field(default_factory=dict)
    last_id: int = 0

    def join(self, peer_id: PeerId, transport: PunchTransport) -> PunchTransport:
        self.transports[peer_id] = transport
        self.port_numbers[peer_id] = transport.port(self.version).number  # it may be closed when an order names it
        self.outcomes[peer_id] = []
        transport.opened(lambda message: self._heard(peer_id, message))
        return transport

    def _heard(self, asker: PeerId, message: pb.PeerMessage) -> None:
        if message.HasField("punch_outcome"):
            self.outcomes[asker].append(message.punch_outcome.opened)
            return
        self.last_id += 1
        named = PeerId(message.punch_request.peer_id)
        other = next(one for one in self.transports if one != asker)
        loop = asyncio.get_running_loop()
        for told, about, asked in ((asker, named, True), (other, asker, False)):
            number = self.port_numbers[other if asked else asker]
            seen = f"[::1]:{number}" if self.version == 6 else f"127.0.0.1:{number}"
            known = self.knows[0 if asked else 1]
            order = pb.Punch(
                punch_id=self.last_id,
                peer_id=about,
                address=seen if known and self.version == 4 else "",
                address_ipv6=seen if known and self.version == 6 else "",
                serves=asked == (self.server == "asker"),
                asked=asked,
                deadline_s=self.deadline_s,
            )
            loop.call_soon(self.transports[told].punch_received, order)
